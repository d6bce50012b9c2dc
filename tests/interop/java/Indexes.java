import java.nio.charset.StandardCharsets;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;

/** `Indexes URL TOPIC` prints the index and the text of each message of a topic, from the first to the last. */
public class Indexes {
    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                Reader<byte[]> reader =
                        client.newReader().topic(arguments[1]).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext();
                String index = message.getIndex().map(String::valueOf).orElse("none");
                System.out.println("MESSAGE " + index + " " + new String(message.getValue(), StandardCharsets.UTF_8));
            }
        }
        System.out.println("END");
        System.exit(0);
    }
}
