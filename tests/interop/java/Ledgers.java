import java.util.Enumeration;
import java.util.concurrent.CountDownLatch;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Ledgers of Apache's client, for tests/interop.
 *
 * <p>leave ZOOKEEPER v2|v3 DIGEST PASSWORD COUNT: writes COUNT confirmed entries and some more, and stops dead.
 * <p>recover ZOOKEEPER v2|v3 DIGEST PASSWORD LEDGER: opens with recovery and prints every entry.
 */
public class Ledgers {
    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri("zk+hierarchical://" + arguments[1] + "/ledgers");
        configuration.setUseV2WireProtocol(arguments[2].equals("v2"));
        configuration.setZkTimeout(10000);
        BookKeeper client = new BookKeeper(configuration);
        DigestType digest = DigestType.valueOf(arguments[3]);
        byte[] password = arguments[4].getBytes("UTF-8");
        if (arguments[0].equals("leave")) {
            LedgerHandle ledger = client.createLedger(3, 3, 2, digest, password);
            int count = Integer.parseInt(arguments[5]);
            for (int number = 0; number < count; number++) {
                ledger.addEntry(("entry " + number).getBytes("UTF-8"));
            }
            CountDownLatch one = new CountDownLatch(1);
            for (int number = 0; number < 20; number++) {
                ledger.asyncAddEntry("under way".getBytes("UTF-8"), (rc, handle, entry, context) -> one.countDown(), null);
            }
            one.await();
            System.out.println("LEDGER " + ledger.getId());
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
        LedgerHandle ledger = client.openLedger(Long.parseLong(arguments[5]), digest, password);
        if (ledger.getLastAddConfirmed() >= 0) {
            Enumeration<LedgerEntry> entries = ledger.readEntries(0, ledger.getLastAddConfirmed());
            while (entries.hasMoreElements()) {
                System.out.println("ENTRY " + new String(entries.nextElement().getEntry(), "UTF-8"));
            }
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
