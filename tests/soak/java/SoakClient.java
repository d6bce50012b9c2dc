import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * The official Java client in a soak: URL TOPIC FOLDER SEED RATE PARTITION STREAM…, a stream being
 * name:type:consumers:partitions. Commands on standard input: finish, end. Events go to files, as books.py tells.
 */
public class SoakClient {
    static final int KEYS = 16;
    static final int WINDOW = 200;
    static final int HELD_MAX = 60;
    static final long HELD_MS = 13_000;
    static final int WAIT_MS = 200;
    /** Not 1: this client passes over a single message at which it begins, and does not ask for another in its place. */
    static final List<Integer> QUEUES = List.of(3, 10, 100, 1000);

    static volatile boolean finishing;
    static volatile boolean ending;

    static String url;
    static String topic;
    static Path folder;
    static String seed;
    static double rate;
    static final Map<String, PrintWriter> files = new HashMap<>();

    static synchronized PrintWriter events(String stream) throws Exception {
        PrintWriter known = files.get(stream);
        if (known == null) {
            known = new PrintWriter(Files.newBufferedWriter(folder.resolve(stream + ".events"), StandardCharsets.US_ASCII,
                StandardOpenOption.CREATE, StandardOpenOption.APPEND));
            files.put(stream, known);
        }
        return known;
    }

    static void write(PrintWriter events, String line) {
        synchronized (events) {
            events.print(line.replace('\n', ' ') + "\n");
        }
    }

    static void remark(PrintWriter events, String name, Object what) {
        String text = what.toString().replaceAll("[^\\x20-\\x7e]", " ");
        write(events, "# " + java.time.LocalTime.now().withNano(0) + " " + name + ": " + text.substring(0, Math.min(text.length(), 200)));
    }

    static String place(MessageId id) {
        MessageIdAdv each = (MessageIdAdv) id;
        return each.getLedgerId() + " " + each.getEntryId() + " " + each.getBatchIndex();
    }

    static PulsarClient connect() throws Exception {
        return PulsarClient.builder().serviceUrl(url).operationTimeout(20, TimeUnit.SECONDS)
            .connectionTimeout(3, TimeUnit.SECONDS).memoryLimit(16, org.apache.pulsar.client.api.SizeUnit.MEGA_BYTES)
            .ioThreads(1).listenerThreads(1).build();
    }

    static void pause(long millis) throws InterruptedException {
        Thread.sleep(millis);
    }

    record Held(int partition, int number, MessageId id, long publishedMs, long sinceMs) {}

    static Held parse(Message<byte[]> message) {
        String[] parts = new String(message.getValue(), StandardCharsets.US_ASCII).split(" ", 3);
        return new Held(Integer.parseInt(parts[0]), Integer.parseInt(parts[1]), message.getMessageId(),
            message.getPublishTime(), System.currentTimeMillis());
    }

    interface Step {
        void run() throws Exception;
    }

    static void start(String name, PrintWriter events, Step step) {
        Thread thread = new Thread(() -> {
            while (!ending) {
                try {
                    step.run();
                    return;
                } catch (Throwable error) { // clients raise what they like while servers are away
                    remark(events, name, error);
                    try {
                        pause(300);
                    } catch (InterruptedException stop) {
                        return;
                    }
                }
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
    }

    /** Numbers the messages of a partition; after a failure sends again, one an entry, what was not confirmed. */
    static class Publisher {
        final int partition;
        final PrintWriter events;
        final Random random;
        final TreeMap<Integer, Boolean> waiting = new TreeMap<>();
        final Semaphore changed = new Semaphore(0);
        volatile boolean failed;
        volatile int life;
        int number;

        Publisher(int partition) throws Exception {
            this.partition = partition;
            this.events = events("publisher-" + partition);
            this.random = new Random((seed + "publisher").hashCode());
        }

        byte[] content(int number) {
            return (partition + " " + number + " " + ".".repeat(number * 37 % 300)).getBytes(StandardCharsets.US_ASCII);
        }

        void confirmed(int number, MessageId id) {
            write(events, "A " + number + " " + (id == null ? "-1 -1 -1" : place(id)));
            synchronized (waiting) {
                waiting.remove(number);
            }
        }

        void run() throws Exception {
            PulsarClient client = connect();
            try {
                Producer<byte[]> producer = client.newProducer().topic(topic + "-partition-" + partition)
                    .producerName("publisher-" + partition).sendTimeout(0, TimeUnit.SECONDS).maxPendingMessages(2 * WINDOW)
                    .batchingMaxMessages(List.of(2, 5, 20).get(random.nextInt(3)))
                    .batchingMaxPublishDelay(List.of(1, 5, 20).get(random.nextInt(3)), TimeUnit.MILLISECONDS).create();
                failed = false;
                life++;
                List<Integer> again;
                synchronized (waiting) {
                    again = new ArrayList<>(waiting.keySet());
                }
                for (int each : again) {
                    confirmed(each, producer.newMessage().key("k" + each % KEYS).sequenceId(each).value(content(each)).send());
                }
                publish(producer);
            } finally {
                client.closeAsync();
            }
        }

        void publish(Producer<byte[]> producer) throws Exception {
            int own = life;
            int untilAgain = 100 + random.nextInt(500);
            while (!ending) {
                if (failed || untilAgain <= 0 && !finishing) {
                    throw new Exception("starts again");
                }
                if (finishing || waiting.size() >= WINDOW) {
                    pause(100);
                    continue;
                }
                for (int i = random.nextInt(9); i >= 0; i--, untilAgain--) {
                    int each = number++;
                    synchronized (waiting) {
                        waiting.put(each, true);
                    }
                    write(events, "S " + each);
                    producer.newMessage().key("k" + each % KEYS).sequenceId(each).value(content(each)).sendAsync()
                        .whenComplete((id, error) -> {
                            if (error == null) {
                                // "Stored before", said to a former life, may be said of a batch that was cut in
                                // another way: it counts only with a position.
                                if (((MessageIdAdv) id).getLedgerId() >= 0 || own == life) {
                                    confirmed(each, id);
                                }
                            } else if (own == life) {
                                remark(events, "publisher-" + partition, each + " failed: " + error);
                                failed = true;
                            }
                        });
                }
                pause((long) (random.nextDouble() * 10_000 / rate));
            }
        }
    }

    /** Acknowledges as applications do: at once, late, twice, up to one in the middle, not at all. */
    static class Taker {
        final String name;
        final String source;
        final String subscription;
        final SubscriptionType type;
        final boolean inOrder;
        final boolean byIndex;
        final PrintWriter events;
        final Random random;
        final Deque<Held> held = new ArrayDeque<>();
        final List<Held> old = new ArrayList<>();
        PulsarClient client;

        Taker(String name, String source, String subscription, SubscriptionType type) throws Exception {
            this.name = name;
            this.source = source;
            this.subscription = subscription;
            this.type = type;
            this.inOrder = type == SubscriptionType.Exclusive || type == SubscriptionType.Failover;
            this.byIndex = inOrder ? (source.charAt(source.length() - 1) - '0') % 2 == 0 : type == SubscriptionType.Shared;
            this.events = events(subscription);
            this.random = new Random((seed + name).hashCode());
        }

        void run() throws Exception {
            if (client == null) {
                client = connect();
            }
            held.clear();
            var builder = client.newConsumer().topic(source).subscriptionName(subscription).subscriptionType(type)
                .consumerName(name).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .receiverQueueSize(QUEUES.get(random.nextInt(4)))
                .negativeAckRedeliveryDelay(300, TimeUnit.MILLISECONDS)
                .enableBatchIndexAcknowledgment(byIndex)
                .isAckReceiptEnabled(random.nextInt(4) == 0);
            if (!inOrder && random.nextInt(10) < 4) {
                builder.ackTimeout(10, TimeUnit.SECONDS);
            }
            Consumer<byte[]> consumer = builder.subscribe();
            try {
                while (!ending) {
                    Message<byte[]> message = consumer.receive(WAIT_MS, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        Held each = parse(message);
                        write(events, "G " + each.partition + " " + each.number + " " + place(each.id) + " " + name);
                        held.addLast(each);
                        if (!act(consumer, each)) {
                            throw new Exception("begins anew");
                        }
                    }
                    long limit = finishing ? 0 : HELD_MS;
                    while (!held.isEmpty() && (held.size() > HELD_MAX || System.currentTimeMillis() - held.peekFirst().sinceMs >= limit)) {
                        acknowledge(consumer, held.pollFirst());
                    }
                }
            } catch (Exception error) {
                leave(consumer);
                throw error;
            }
        }

        /** As an application that ends, and does not wait for its good-bye; what it held stays to be acknowledged late. */
        void leave(Consumer<byte[]> consumer) {
            for (Held each : held) {
                keep(each);
            }
            if (random.nextBoolean()) {
                consumer.closeAsync();
            } else {
                client.closeAsync();
                client = null;
            }
        }

        void keep(Held each) {
            old.add(each);
            if (old.size() > 40) {
                old.remove(0);
            }
        }

        void acknowledge(Consumer<byte[]> consumer, Held each) {
            consumer.acknowledgeAsync(each.id);
            keep(each);
        }

        Held random(Deque<Held> from) {
            return new ArrayList<>(from).get(random.nextInt(from.size()));
        }

        /**
         * False: begin anew. Left out is what this client does not survive: a seek of several partitions, and
         * redeliverUnacknowledgedMessages, throw away what has just come again; a negative ack of an Exclusive consumer
         * that falls between its SUBSCRIBE and the answer is counted and not told, and all that comes is too old then.
         */
        boolean act(Consumer<byte[]> consumer, Held last) throws Exception {
            int draw = random.nextInt(1000);
            if (finishing) {
                return true;
            }
            if (draw < 300) {
                acknowledge(consumer, held.pollLast());
            } else if (draw < 360) {
                while (!held.isEmpty()) {
                    acknowledge(consumer, held.pollFirst());
                }
            } else if (draw < 460) {
                Held each = random(held);
                held.remove(each);
                acknowledge(consumer, each);
            } else if (!inOrder && draw < 480) {
                consumer.negativeAcknowledge(held.pollLast().id);
            } else if (draw < 500 && !old.isEmpty()) {
                consumer.acknowledgeAsync(old.get(random.nextInt(old.size())).id);
            } else if (draw < 518) {
                return false;
            } else if (inOrder && draw < 520) {
                held.clear();
                remark(events, name, "seek to " + last.number);
                consumer.seekAsync(last.id).get(20, TimeUnit.SECONDS);
            } else if (inOrder && draw < 523 && !old.isEmpty()) {
                Held target = old.get(random.nextInt(old.size()));
                held.clear();
                remark(events, name, "seek to " + target.number);
                consumer.seekAsync(target.id).get(20, TimeUnit.SECONDS);
            } else if (inOrder && draw < 525) {
                held.clear();
                remark(events, name, "seek to the time of " + last.number);
                consumer.seekAsync(last.publishedMs - 1).get(20, TimeUnit.SECONDS);
            } else if (inOrder && draw < 526) {
                held.clear();
                remark(events, name, "seek to the beginning");
                consumer.seekAsync(MessageId.earliest).get(20, TimeUnit.SECONDS);
            } else if (inOrder && draw < 650) {
                consumer.acknowledgeCumulativeAsync(last.id);
                keep(last);
                held.clear();
            } else if (inOrder && draw < 800) {
                Held target = random(held);
                consumer.acknowledgeCumulativeAsync(target.id);
                keep(target);
                while (held.pollFirst() != target) {
                    // all of these are in front of it
                }
            }
            return true;
        }
    }

    static void read(int partition, String stream) throws Exception {
        String name = stream + "-" + partition;
        PrintWriter events = events(stream);
        Random random = new Random((seed + name).hashCode());
        int[] next = {0};
        MessageId[] from = {MessageId.earliest};
        start(name, events, () -> {
            PulsarClient client = connect();
            try {
                write(events, "J " + partition + " " + next[0]);
                Reader<byte[]> reader = client.newReader().topic(topic + "-partition-" + partition).startMessageId(from[0])
                    .receiverQueueSize(QUEUES.get(random.nextInt(4))).create();
                while (!ending) {
                    Message<byte[]> message = reader.readNext(WAIT_MS, TimeUnit.MILLISECONDS);
                    if (message == null) {
                        continue;
                    }
                    Held each = parse(message);
                    write(events, "G " + each.partition + " " + each.number + " " + place(each.id));
                    from[0] = each.id;
                    next[0] = each.number + 1;
                    if (!finishing && random.nextInt(250) == 0) {
                        if (random.nextInt(3) == 0) {
                            from[0] = MessageId.earliest;
                            next[0] = 0;
                        }
                        throw new Exception("begins anew");
                    }
                }
            } finally {
                client.closeAsync();
            }
        });
    }

    public static void main(String[] arguments) throws Exception {
        url = arguments[0];
        topic = arguments[1];
        folder = Path.of(arguments[2]);
        seed = arguments[3];
        rate = Double.parseDouble(arguments[4]);
        int partition = Integer.parseInt(arguments[5]);
        if (partition >= 0) {
            Publisher publisher = new Publisher(partition);
            start("publisher-" + partition, publisher.events, publisher::run);
        }
        for (int i = 6; i < arguments.length; i++) {
            String[] parts = arguments[i].split(":", -1);
            String[] partitions = parts[3].isEmpty() ? new String[] {""} : parts[3].split(",");
            for (String each : partitions) {
                if (parts[1].equals("reader")) {
                    read(Integer.parseInt(each), parts[0]);
                    continue;
                }
                for (int j = 0; j < Integer.parseInt(parts[2]); j++) {
                    String source = each.isEmpty() ? topic : topic + "-partition-" + each;
                    Taker taker = new Taker(parts[0] + "-" + each + "-" + j, source, parts[0],
                        SubscriptionType.valueOf(parts[1]));
                    start(taker.name, taker.events, taker::run);
                }
            }
        }
        Thread listener = new Thread(SoakClient::listen);
        listener.setDaemon(true);
        listener.start();
        while (!ending) {
            pause(200);
            flush();
        }
        pause(1000);
        flush();
        Runtime.getRuntime().halt(0); // the clients' threads would keep it alive
    }

    static synchronized void flush() {
        for (PrintWriter each : files.values()) {
            synchronized (each) {
                each.flush();
            }
        }
    }

    static void listen() {
        try {
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null && !line.equals("end"); line = input.readLine()) {
                finishing |= line.equals("finish");
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
        ending = true;
    }
}
