import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Ten messages of a topic, of which transactions acknowledge some: 0 and 3 in one that is committed, 1 in one that is
 * aborted, and with a third argument 5 in one that stays open. Ends without closing anything.
 */
public class TransactionAcks {
    public static void main(String[] arguments) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build();
        Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(arguments[1]).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        Producer<String> producer = client.newProducer(Schema.STRING).topic(arguments[1]).enableBatching(false).create();
        for (int number = 0; number < 10; number++) {
            producer.send("message " + number);
        }
        MessageId[] ids = new MessageId[10];
        for (int number = 0; number < 10; number++) {
            Message<String> message = consumer.receive(30, TimeUnit.SECONDS);
            ids[number] = message.getMessageId();
        }
        Transaction committed = begin(client);
        consumer.acknowledgeAsync(ids[0], committed).get();
        consumer.acknowledgeAsync(ids[3], committed).get();
        committed.commit().get();
        Transaction aborted = begin(client);
        consumer.acknowledgeAsync(ids[1], aborted).get();
        aborted.abort().get();
        if (arguments.length > 2) {
            consumer.acknowledgeAsync(ids[5], begin(client)).get();
        }
        System.out.println("END");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static Transaction begin(PulsarClient client) throws Exception {
        return client.newTransaction().withTransactionTimeout(10, TimeUnit.MINUTES).build().get();
    }
}
