import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/** What people do with the official Java client, each step checked; prints a line per step that held. */
public class Tour {
    public static class Reading {
        public String sensor;
        public int value;

        public Reading() {}

        public Reading(String sensor, int value) {
            this.sensor = sensor;
            this.value = value;
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
        System.out.println("HELD " + what);
    }

    static String text(Message<byte[]> message) {
        return new String(message.getValue(), StandardCharsets.UTF_8);
    }

    static <T> Message<T> next(Consumer<T> consumer) throws PulsarClientException {
        Message<T> message = consumer.receive(20, TimeUnit.SECONDS);
        if (message == null) {
            throw new AssertionError("no message came to " + consumer.getSubscription());
        }
        return message;
    }

    static Consumer<byte[]> subscribe(PulsarClient client, String topic, String name, SubscriptionType type) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName(name).subscriptionType(type)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    public static void main(String[] arguments) {
        int code = 1;
        try {
            PulsarClient client = connect(arguments);
            publish(client);
            subscriptions(client);
            chunksOnShared(client);
            seeking(client);
            schemas(client);
            others(client);
            client.close();
            System.out.println("END");
            code = 0;
        } catch (Throwable error) {
            error.printStackTrace(System.out);
        }
        System.out.flush();
        Runtime.getRuntime().halt(code); // the client's threads would keep it alive
    }

    /** URL; over TLS also the file of the certificates that are trusted, and that of a token. */
    static PulsarClient connect(String[] arguments) throws Exception {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(arguments[0]);
        if (arguments.length > 1) {
            String token = Files.readString(Path.of(arguments[2])).trim();
            builder.tlsTrustCertsFilePath(arguments[1]).authentication(AuthenticationFactory.token(token));
        }
        return builder.build();
    }

    static void publish(PulsarClient client) throws Exception {
        int number = 0;
        for (CompressionType compression : CompressionType.values()) {
            for (boolean batched : new boolean[] {true, false}) {
                Producer<byte[]> producer = client.newProducer().topic("tour").enableBatching(batched)
                    .compressionType(compression).producerName("tour-" + compression + batched).create();
                List<CompletableFuture<MessageId>> sent = new ArrayList<>();
                for (int i = 0; i < 20; i++) {
                    sent.add(producer.newMessage().key("k" + number % 7).property("codec", compression.name())
                        .eventTime(1000 + number).value(("m" + number++).getBytes()).sendAsync());
                }
                producer.flush();
                for (CompletableFuture<MessageId> each : sent) {
                    each.get(20, TimeUnit.SECONDS);
                }
                producer.close();
            }
        }
        Reader<byte[]> reader = client.newReader().topic("tour").startMessageId(MessageId.earliest).create();
        int read = 0;
        while (reader.hasMessageAvailable()) {
            Message<byte[]> message = reader.readNext(20, TimeUnit.SECONDS);
            if (!text(message).equals("m" + read) || message.getEventTime() != 1000 + read || !message.getKey().equals("k" + read % 7)) {
                throw new AssertionError("message " + read + " is " + text(message));
            }
            read++;
        }
        check(read == 200, "every codec, batched and not, read back in order");
        reader.close();

        byte[] large = new byte[12 << 20];
        for (int i = 0; i < large.length; i++) {
            large[i] = (byte) (i * 31);
        }
        Producer<byte[]> chunking = client.newProducer().topic("tour-chunks").enableBatching(false).enableChunking(true).create();
        Consumer<byte[]> whole = subscribe(client, "tour-chunks", "s", SubscriptionType.Exclusive);
        chunking.send(large);
        check(java.util.Arrays.equals(next(whole).getValue(), large), "a message of 12 MiB in chunks");
        whole.close();
        chunking.close();
    }

    static void subscriptions(PulsarClient client) throws Exception {
        for (SubscriptionType type : SubscriptionType.values()) {
            Consumer<byte[]> one = subscribe(client, "tour", "type-" + type, type);
            boolean several = type != SubscriptionType.Exclusive;
            Consumer<byte[]> two = several ? subscribe(client, "tour", "type-" + type, type) : null;
            Set<String> seen = new HashSet<>();
            long end = System.currentTimeMillis() + 30000;
            while (seen.size() < 200 && System.currentTimeMillis() < end) {
                for (Consumer<byte[]> each : several ? List.of(one, two) : List.of(one)) {
                    Message<byte[]> message = each.receive(50, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        seen.add(text(message));
                        each.acknowledge(message);
                    }
                }
            }
            check(seen.size() == 200, type + " delivers everything");
            if (type == SubscriptionType.Exclusive) {
                boolean refused = false;
                try {
                    subscribe(client, "tour", "type-" + type, type);
                } catch (PulsarClientException.ConsumerBusyException expected) {
                    refused = true;
                }
                check(refused, "a second Exclusive consumer is refused");
            }
            one.close();
            if (two != null) {
                two.close();
            }
        }
        Consumer<byte[]> cumulative = subscribe(client, "tour", "cumulative", SubscriptionType.Failover);
        for (int i = 0; i < 100; i++) {
            Message<byte[]> message = next(cumulative);
            if (i == 99) {
                cumulative.acknowledgeCumulative(message);
            }
        }
        cumulative.close();
        cumulative = subscribe(client, "tour", "cumulative", SubscriptionType.Failover);
        check(text(next(cumulative)).equals("m100"), "a cumulative acknowledgement holds over a new connection");
        cumulative.unsubscribe();
        Consumer<byte[]> nacking = client.newConsumer().topic("tour").subscriptionName("nack").subscriptionType(SubscriptionType.Shared)
            .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        Message<byte[]> refused = next(nacking);
        nacking.negativeAcknowledge(refused);
        boolean again = false;
        for (int i = 0; i < 400 && !again; i++) {
            Message<byte[]> message = next(nacking);
            again = message.getMessageId().equals(refused.getMessageId()) && message.getRedeliveryCount() > 0;
            if (!message.getMessageId().equals(refused.getMessageId())) {
                nacking.acknowledge(message);
            }
        }
        check(again, "a negative acknowledgement brings the message back, counted");
        nacking.close();
    }

    /** Two consumers share messages of three chunks; one leaves with what it has, the other gives some back. */
    static void chunksOnShared(PulsarClient client) throws Exception {
        int count = 40;
        ConsumerBuilder<byte[]> shared = client.newConsumer().topic("tour-shared").subscriptionName("s")
            .subscriptionType(SubscriptionType.Shared).negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS);
        Consumer<byte[]> leaving = shared.clone().receiverQueueSize(4).subscribe(); // not a whole number of messages
        Consumer<byte[]> staying = shared.clone().subscribe();
        Producer<byte[]> producer = client.newProducer().topic("tour-shared").enableBatching(false).enableChunking(true)
            .chunkMaxMessageSize(10_000).create();
        for (int i = 0; i < count; i++) {
            byte[] large = new byte[25_000 + i];
            java.util.Arrays.fill(large, (byte) i);
            producer.newMessage().property("number", "" + i).value(large).sendAsync();
        }
        producer.flush();
        next(leaving);
        leaving.close();
        Set<Integer> seen = new HashSet<>();
        Set<Integer> acknowledged = new HashSet<>();
        while (acknowledged.size() < count) {
            Message<byte[]> message = next(staying);
            int number = Integer.parseInt(message.getProperty("number"));
            byte[] expected = new byte[25_000 + number];
            java.util.Arrays.fill(expected, (byte) number);
            if (!java.util.Arrays.equals(message.getValue(), expected) || acknowledged.contains(number)) {
                throw new AssertionError("message " + number + ", " + message.getValue().length + " bytes");
            }
            if (seen.add(number) && number % 5 == 0) {
                staying.negativeAcknowledge(message);
            } else {
                staying.acknowledge(message);
                acknowledged.add(number);
            }
        }
        staying.close();
        Consumer<byte[]> last = shared.clone().subscribe();
        check(last.receive(1, TimeUnit.SECONDS) == null, "each message in chunks comes to one of two consumers until it is acknowledged");
        last.close();
        producer.close();
    }

    static void seeking(PulsarClient client) throws Exception {
        Consumer<byte[]> consumer = subscribe(client, "tour", "seek", SubscriptionType.Exclusive);
        MessageId fiftieth = null;
        for (int i = 0; i <= 150; i++) {
            Message<byte[]> message = next(consumer);
            if (i == 50) {
                fiftieth = message.getMessageId();
            }
        }
        consumer.seek(fiftieth);
        String found = text(next(consumer));
        check(found.equals("m51"), "seek to an id goes on after it: " + found);
        consumer.seek(MessageId.earliest);
        check(text(next(consumer)).equals("m0"), "seek to the earliest");
        consumer.seek(System.currentTimeMillis() - 3600000);
        check(text(next(consumer)).equals("m0"), "seek by time");
        consumer.seek(MessageId.latest);
        check(consumer.receive(300, TimeUnit.MILLISECONDS) == null, "seek to the latest");
        check(consumer.getLastMessageIds().size() == 1, "the last message id");
        consumer.close();
        Reader<byte[]> inclusive = client.newReader().topic("tour").startMessageId(fiftieth).startMessageIdInclusive().create();
        check(text(inclusive.readNext(20, TimeUnit.SECONDS)).equals("m50"), "an inclusive reader");
        inclusive.close();
    }

    static void schemas(PulsarClient client) throws Exception {
        Producer<Reading> avro = client.newProducer(Schema.AVRO(Reading.class)).topic("tour-avro").create();
        avro.send(new Reading("a", 1));
        Consumer<GenericRecord> any = client.newConsumer(Schema.AUTO_CONSUME()).topic("tour-avro").subscriptionName("s")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        GenericRecord record = next(any).getValue();
        check(record.getField("sensor").equals("a") && record.getField("value").equals(1), "Avro, read by the schema of the topic");
        any.close();
        boolean refused = false;
        try {
            client.newProducer(Schema.INT64).topic("tour-avro").create();
        } catch (PulsarClientException.IncompatibleSchemaException expected) {
            refused = true;
        }
        check(refused, "an incompatible schema is refused");
        Producer<Reading> json = client.newProducer(Schema.JSON(Reading.class)).topic("tour-json").create();
        json.send(new Reading("j", 2));
        Consumer<Reading> typed = client.newConsumer(Schema.JSON(Reading.class)).topic("tour-json").subscriptionName("s")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        check(next(typed).getValue().sensor.equals("j"), "JSON");
        Schema<KeyValue<String, Reading>> pairs = Schema.KeyValue(Schema.STRING, Schema.AVRO(Reading.class), KeyValueEncodingType.SEPARATED);
        Producer<KeyValue<String, Reading>> paired = client.newProducer(pairs).topic("tour-pairs").create();
        paired.send(new KeyValue<>("key", new Reading("p", 3)));
        Consumer<KeyValue<String, Reading>> both = client.newConsumer(pairs).topic("tour-pairs").subscriptionName("s")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        KeyValue<String, Reading> pair = next(both).getValue();
        check(pair.getKey().equals("key") && pair.getValue().value == 3, "key and value apart");
        Producer<Long> numbers = client.newProducer(Schema.INT64).topic("tour-int64").create();
        numbers.send(1L << 40);
        Consumer<Long> counted = client.newConsumer(Schema.INT64).topic("tour-int64").subscriptionName("s")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        check(next(counted).getValue() == 1L << 40, "a primitive schema");
    }

    static void others(PulsarClient client) throws Exception {
        Consumer<byte[]> pattern = client.newConsumer().topicsPattern(Pattern.compile("persistent://public/default/tour-pattern-.*"))
            .subscriptionName("s").patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        for (String name : List.of("tour-pattern-1", "tour-pattern-2")) {
            client.newProducer().topic(name).create().send(name.getBytes());
        }
        check(Set.of(text(next(pattern)), text(next(pattern))).equals(Set.of("tour-pattern-1", "tour-pattern-2")), "a pattern finds new topics");
        pattern.close();
        Producer<String> table = client.newProducer(Schema.STRING).topic("tour-table").create();
        for (int i = 0; i < 30; i++) {
            table.newMessage().key("k" + i % 3).value("v" + i).send();
        }
        TableView<String> view = client.newTableView(Schema.STRING).topic("persistent://public/default/tour-table").create();
        TreeMap<String, String> found = new TreeMap<>();
        view.forEach(found::put);
        check(found.toString().equals("{k0=v27, k1=v28, k2=v29}"), "a table view holds the latest value of each key");
        view.close();
        Producer<byte[]> byKey = client.newProducer().topic("tour-keys").batcherBuilder(BatcherBuilder.KEY_BASED).create();
        Consumer<byte[]> left = subscribe(client, "tour-keys", "s", SubscriptionType.Key_Shared);
        Consumer<byte[]> right = subscribe(client, "tour-keys", "s", SubscriptionType.Key_Shared);
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int i = 0; i < 200; i++) {
            sent.add(byKey.newMessage().key("k" + i % 20).value(("" + i).getBytes()).sendAsync());
        }
        byKey.flush();
        for (CompletableFuture<MessageId> each : sent) {
            each.get(20, TimeUnit.SECONDS);
        }
        TreeMap<String, Integer> last = new TreeMap<>();
        TreeMap<String, Consumer<byte[]>> owner = new TreeMap<>();
        int count = 0;
        long end = System.currentTimeMillis() + 30000;
        while (count < 200 && System.currentTimeMillis() < end) {
            for (Consumer<byte[]> each : List.of(left, right)) {
                Message<byte[]> message = each.receive(50, TimeUnit.MILLISECONDS);
                if (message != null) {
                    int value = Integer.parseInt(text(message));
                    Integer before = last.put(message.getKey(), value);
                    Consumer<byte[]> by = owner.putIfAbsent(message.getKey(), each);
                    if (before != null && before > value || by != null && by != each) {
                        throw new AssertionError("key " + message.getKey() + " out of order or at two consumers");
                    }
                    each.acknowledge(message);
                    count++;
                }
            }
        }
        check(count == 200 && new HashSet<>(owner.values()).size() == 2, "Key_Shared: each key in order at one consumer");
        Producer<byte[]> later = client.newProducer().topic("tour-later").enableBatching(false).create();
        Consumer<byte[]> waiting = subscribe(client, "tour-later", "s", SubscriptionType.Shared);
        long sentAt = System.currentTimeMillis();
        later.newMessage().deliverAfter(3, TimeUnit.SECONDS).value("later".getBytes()).send();
        later.newMessage().value("now".getBytes()).send();
        // Brokers may deliver a tick (1 s) early.
        check(text(next(waiting)).equals("now") && text(next(waiting)).equals("later") && System.currentTimeMillis() - sentAt >= 1900,
            "a delayed message comes later");
    }
}
