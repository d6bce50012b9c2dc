import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;

/** A client that wants transactions; prints what `build()` says and after how long. */
public class Transactions {
    public static void main(String[] arguments) throws Exception {
        for (int round = 0; round < 2; round++) { // the first one loads the classes, too
            long began = System.nanoTime();
            try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build()) {
                System.out.println("BUILT");
            } catch (PulsarClientException error) {
                long tookMs = (System.nanoTime() - began) / 1_000_000;
                System.out.println("REFUSED after " + tookMs + " ms: " + error.getMessage());
            }
        }
        System.exit(0);
    }
}
