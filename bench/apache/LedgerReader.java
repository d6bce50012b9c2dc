import java.util.Iterator;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Reads ledgers from their first entry with BookKeeper's Java client: `zookeeper password count batch ledger…`; batch 0 is single reads. */
public final class LedgerReader {
    /** Entries asked for by one call of single reads; the client sends a request for each. */
    private static final int WINDOW = 1000;

    private LedgerReader() {}

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri("zk+hierarchical://" + arguments[0] + "/ledgers");
        configuration.setUseV2WireProtocol(true);
        configuration.setThrottleValue(0); // by default the client reads 5,000 entries a second and no more
        configuration.setBatchReadEnabled(true);
        long count = Long.parseLong(arguments[2]);
        int batch = Integer.parseInt(arguments[3]);
        try (BookKeeper client = BookKeeper.newBuilder(configuration).build()) {
            for (int at = 4; at < arguments.length; at++) {
                ReadHandle ledger = client.newOpenLedgerOp()
                        .withLedgerId(Long.parseLong(arguments[at]))
                        .withPassword(arguments[1].getBytes("UTF-8"))
                        .withDigestType(DigestType.CRC32C)
                        .withRecovery(false)
                        .execute().get();
                long last = Math.min(count, ledger.getLastAddConfirmed() + 1) - 1;
                long next = 0;
                long bytes = 0;
                long began = System.nanoTime();
                while (next <= last) {
                    LedgerEntries entries = batch > 0
                            ? ledger.batchRead(next, (int) Math.min(batch, last - next + 1), 5 * 1024 * 1024)
                            : ledger.read(next, Math.min(next + WINDOW - 1, last));
                    try (entries) {
                        for (Iterator<LedgerEntry> each = entries.iterator(); each.hasNext();) {
                            LedgerEntry entry = each.next();
                            if (entry.getEntryId() != next) {
                                throw new IllegalStateException("entry " + entry.getEntryId() + " came for " + next);
                            }
                            bytes += entry.getLength() > 0 ? entry.getEntryBuffer().readableBytes() : 0;
                            next++;
                        }
                    }
                }
                System.out.println("entries " + next + " bytes " + bytes + " ms " + (System.nanoTime() - began) / 1000000.0);
                ledger.close();
            }
        }
    }
}
