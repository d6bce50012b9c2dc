import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * A consumer for which each message fails: `URL TOPIC SUBSCRIPTION MAX COUNT` takes so many messages, asks for each of
 * them again, and prints what it was given.
 */
public class Retries {
    public static void main(String[] arguments) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(Integer.parseInt(arguments[3])).build();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                Consumer<byte[]> consumer = client.newConsumer().topic(arguments[1]).subscriptionName(arguments[2])
                        .subscriptionType(SubscriptionType.Shared).enableRetry(true).deadLetterPolicy(policy)
                        // Java's client may close a consumer before it has sent what it acknowledged.
                        .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).isAckReceiptEnabled(true)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (int left = Integer.parseInt(arguments[4]); left > 0; left--) {
                Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException("no message came");
                }
                Map<String, String> properties = new TreeMap<>(message.getProperties());
                System.out.println("MESSAGE|" + message.getTopicName() + "|" + new String(message.getValue()) + "|"
                        + message.getKey() + "|" + properties);
                consumer.reconsumeLater(message, 1, TimeUnit.SECONDS);
            }
        }
        System.out.println("END");
        System.exit(0);
    }
}
