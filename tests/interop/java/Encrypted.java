import java.nio.charset.StandardCharsets;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;

/** Publishes what the official client encrypts: messages alone, a compressed batch, one in chunks. */
public class Encrypted {
    public static void main(String[] arguments) throws Exception {
        String url = arguments[0];
        String topic = arguments[1];
        String key = arguments[2];
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build()) {
            try (Producer<byte[]> alone = builder(client, topic, key).enableBatching(false).create()) {
                alone.newMessage().key("k").value("alone".getBytes(StandardCharsets.UTF_8)).send();
            }
            try (Producer<byte[]> many = builder(client, topic, key).compressionType(CompressionType.ZSTD)
                    .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
                for (int number = 0; number < 20; number++) {
                    many.sendAsync(("many " + number).getBytes(StandardCharsets.UTF_8));
                }
                many.flush();
            }
            try (Producer<byte[]> chunks = builder(client, topic, key).enableBatching(false).enableChunking(true)
                    .compressionType(CompressionType.LZ4).create()) {
                byte[] large = new byte[6_000_000];
                new Random(7).nextBytes(large);
                large[0] = 7;
                chunks.send(large);
            }
        }
        System.out.println("END");
    }

    static ProducerBuilder<byte[]> builder(PulsarClient client, String topic, String key) {
        return client.newProducer().topic(topic).addEncryptionKey("job").defaultCryptoKeyReader("file://" + key);
    }
}
