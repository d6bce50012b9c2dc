import java.util.Enumeration;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Ledgers of Apache's client over TLS, for tests/interop.
 *
 * <p>write ZOOKEEPER v2|v3 FOLDER COUNT: writes COUNT entries on three bookies and prints the ledger.
 * <p>read ZOOKEEPER v2|v3 FOLDER LEDGER: opens with recovery and prints every entry.
 *
 * <p>FOLDER has tls.crt, tls.key and ca.crt; `-` is clear text. A failure is printed as FAILED and its class.
 */
public class SecureLedgers {
    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri("zk+hierarchical://" + arguments[1] + "/ledgers");
        configuration.setUseV2WireProtocol(arguments[2].equals("v2"));
        configuration.setZkTimeout(10000);
        String folder = arguments[3];
        if (!folder.equals("-")) {
            configuration.setTLSProviderFactoryClass("org.apache.bookkeeper.tls.TLSContextFactory");
            configuration.setTLSClientAuthentication(true);
            configuration.setTLSKeyStoreType("PEM");
            configuration.setTLSKeyStore(folder + "/tls.key");
            configuration.setTLSCertificatePath(folder + "/tls.crt");
            configuration.setTLSTrustStoreType("PEM");
            configuration.setTLSTrustStore(folder + "/ca.crt");
        }
        BookKeeper client = new BookKeeper(configuration);
        try {
            run(client, arguments);
        } catch (Exception error) {
            System.out.println("FAILED " + error.getClass().getSimpleName());
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void run(BookKeeper client, String[] arguments) throws Exception {
        if (arguments[0].equals("write")) {
            LedgerHandle ledger = client.createLedger(3, 3, 3, DigestType.CRC32C, new byte[0]);
            int count = Integer.parseInt(arguments[4]);
            for (int number = 0; number < count; number++) {
                ledger.addEntry(("entry " + number).getBytes("UTF-8"));
            }
            System.out.println("LEDGER " + ledger.getId());
            return;
        }
        LedgerHandle ledger = client.openLedger(Long.parseLong(arguments[4]), DigestType.CRC32C, new byte[0]);
        if (ledger.getLastAddConfirmed() >= 0) {
            Enumeration<LedgerEntry> entries = ledger.readEntries(0, ledger.getLastAddConfirmed());
            while (entries.hasMoreElements()) {
                System.out.println("ENTRY " + new String(entries.nextElement().getEntry(), "UTF-8"));
            }
        }
    }
}
