import java.security.MessageDigest;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.Arrays;
import java.util.Date;
import java.util.HexFormat;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.GenericObject;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.impl.schema.KeyValueSchemaImpl;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * Topics of each kind: `write URL PUBLIC_KEY` publishes them, `more URL` publishes what comes behind a compaction, and
 * `read URL PRIVATE_KEY` prints each message of each topic.
 */
public class Contents {
    public static class First {
        public String name;
        public int amount;
    }

    public static class Second {
        public String name;
        public int amount;
        public Double price;
        public java.util.List<String> tags;
    }

    private static final String PLACE = "persistent://public/default/contents-";
    private static PulsarClient client;

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient made = PulsarClient.builder().serviceUrl(arguments[1]).build()) {
            client = made;
            switch (arguments[0]) {
                case "write" -> write(arguments[2]);
                case "more" -> keyed("compacted", 30, 35);
                default -> read(arguments[2]);
            }
        }
        System.out.println("END");
        System.exit(0);
    }

    private static void write(String publicKey) throws Exception {
        publish("bytes", Schema.BYTES, new byte[] {0, -1}, new byte[0], bytes(3_000));
        publish("string", Schema.STRING, "a", "", "\u00e4\ud83d\ude00");
        publish("int8", Schema.INT8, (byte) -1, (byte) 0, Byte.MAX_VALUE);
        publish("int16", Schema.INT16, (short) -1, (short) 0, Short.MAX_VALUE);
        publish("int32", Schema.INT32, -1, 0, Integer.MAX_VALUE);
        publish("int64", Schema.INT64, -1L, 0L, Long.MAX_VALUE);
        publish("float", Schema.FLOAT, -1.5f, 0f, Float.MAX_VALUE);
        publish("double", Schema.DOUBLE, -1.5, 0.0, Double.MIN_VALUE);
        publish("bool", Schema.BOOL, true, false, true);
        publish("date", Schema.DATE, new Date(0), new Date(1_700_000_000_123L), new Date(-1));
        publish("time", Schema.TIME, new java.sql.Time(0), new java.sql.Time(1_000), new java.sql.Time(86_399_000));
        publish("timestamp", Schema.TIMESTAMP, new java.sql.Timestamp(0), new java.sql.Timestamp(1), new java.sql.Timestamp(-1));
        publish("instant", Schema.INSTANT, Instant.EPOCH, Instant.ofEpochSecond(1_700_000_000, 123_456_789));
        publish("local-date", Schema.LOCAL_DATE, LocalDate.of(2026, 11, 30), LocalDate.of(1969, 12, 31));
        publish("local-time", Schema.LOCAL_TIME, LocalTime.of(1, 2, 3, 4), LocalTime.MIDNIGHT);
        publish("local-date-time", Schema.LOCAL_DATE_TIME, LocalDateTime.of(2026, 11, 30, 1, 2, 3, 4));
        publish("avro", Schema.AVRO(First.class), first("a", 1), first(null, 2));
        publish("avro", Schema.AVRO(Second.class), second("b", 3), second("c", 4));
        publish("json", Schema.JSON(First.class), first("a", 1), first(null, 2));
        publish("json", Schema.JSON(Second.class), second("b", 3), second("c", 4));
        publish("protobuf", Schema.PROTOBUF_NATIVE(com.google.protobuf.StringValue.class),
                com.google.protobuf.StringValue.of("a"), com.google.protobuf.StringValue.of(""));
        publish("inline", KeyValueSchemaImpl.of(Schema.STRING, Schema.AVRO(First.class), KeyValueEncodingType.INLINE),
                new KeyValue<>("k", first("a", 1)), new KeyValue<>("l", first("b", 2)));
        Schema<KeyValue<First, Integer>> apart =
                KeyValueSchemaImpl.of(Schema.JSON(First.class), Schema.INT32, KeyValueEncodingType.SEPARATED);
        try (Producer<KeyValue<First, Integer>> producer = client.newProducer(apart).topic(PLACE + "apart").create()) {
            producer.send(new KeyValue<>(first("a", 1), 7));
            producer.send(new KeyValue<>(first("b", 2), 8));
        }
        for (CompressionType type : CompressionType.values()) {
            try (Producer<byte[]> producer = client.newProducer().topic(PLACE + "compressed").compressionType(type)
                    .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
                for (int number = 0; number < 5; number++) {
                    producer.sendAsync(bytes(1_000 + number));
                }
                producer.flush();
            }
        }
        for (String name : new String[] {"chunks", "encrypted"}) {
            ProducerBuilder<byte[]> builder = client.newProducer().topic(PLACE + name);
            if (name.equals("encrypted")) {
                builder.addEncryptionKey("job").defaultCryptoKeyReader("file://" + publicKey);
            }
            try (Producer<byte[]> many = builder.clone().batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
                for (int number = 0; number < 5; number++) {
                    many.newMessage().key("k" + number).value(bytes(number)).sendAsync();
                }
                many.flush();
            }
            try (Producer<byte[]> large = builder.clone().enableBatching(false).enableChunking(true)
                    .chunkMaxMessageSize(100_000).create()) {
                large.newMessage().key("large").property("p", "q").value(bytes(350_000)).send();
                large.send(bytes(10));
            }
        }
        keyed("compacted", 0, 30);
    }

    /** Two in a batch, with what a message can have; then alone; then a null value. */
    @SafeVarargs
    private static <T> void publish(String name, Schema<T> schema, T... values) throws Exception {
        try (Producer<T> producer = client.newProducer(schema).topic(PLACE + name)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).batchingMaxMessages(1_000).create()) {
            for (T value : values) {
                producer.newMessage().orderingKey(new byte[] {9, 8}).eventTime(1_234_567_890_123L)
                        .property("a", "1").property("\u00e4", "").value(value).sendAsync();
            }
            producer.flush();
            producer.newMessage().key("again").value(values[0]).send();
            if (!(schema instanceof KeyValueSchemaImpl)) {
                producer.newMessage().key("null").value(null).send();
            }
        }
    }

    private static void keyed(String name, int begin, int end) throws Exception {
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(PLACE + name)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).batchingMaxMessages(4).create()) {
            for (int number = begin; number < end; number++) {
                producer.newMessage().key("k" + number % 7).value("v" + number).sendAsync();
            }
            producer.flush();
        }
    }

    private static void read(String privateKey) throws Exception {
        String[] names = {"bytes", "string", "int8", "int16", "int32", "int64", "float", "double", "bool", "date", "time",
            "timestamp", "instant", "local-date", "local-time", "local-date-time", "avro", "json", "protobuf", "inline",
            "apart", "compressed", "chunks", "encrypted", "compacted"};
        for (String name : names) {
            boolean hasSchema = !Arrays.asList("bytes", "compressed", "chunks", "encrypted").contains(name);
            print(name, name, hasSchema ? Schema.AUTO_CONSUME() : Schema.BYTES, privateKey, false);
        }
        print("compacted", "kept", Schema.AUTO_CONSUME(), privateKey, true);
    }

    private static void print(String name, String shown, Schema<?> schema, String privateKey, boolean compacted)
            throws Exception {
        try (Reader<?> reader = client.newReader(schema).topic(PLACE + name).startMessageId(MessageId.earliest)
                .readCompacted(compacted).defaultCryptoKeyReader("file://" + privateKey).create()) {
            while (reader.hasMessageAvailable()) {
                Message<?> message = reader.readNext(20, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException(shown + ": no message although one is available");
                }
                byte[] data = message.getData() == null ? new byte[0] : message.getData();
                System.out.println(String.join("|", "MESSAGE", shown, message.getMessageId().toString(),
                        String.valueOf(message.hasKey() ? message.getKey() : null), hex(message.getOrderingKey()),
                        String.valueOf(message.getEventTime()), String.valueOf(message.getPublishTime()),
                        String.valueOf(message.getSequenceId()), message.getProducerName(),
                        new TreeMap<>(message.getProperties()).toString(), hex(message.getSchemaVersion()),
                        hex(MessageDigest.getInstance("SHA-256").digest(data)), String.valueOf(data.length),
                        text(message.getValue())));
            }
        }
    }

    private static String text(Object value) {
        if (value instanceof KeyValue<?, ?> pair) {
            return text(pair.getKey()) + "=" + text(pair.getValue());
        }
        if (value instanceof GenericRecord record && !record.getFields().isEmpty()) {
            Map<String, String> fields = new TreeMap<>();
            record.getFields().stream().filter(field -> record.getField(field) != null)
                    .forEach(field -> fields.put(field.getName(), text(record.getField(field))));
            return fields.toString();
        }
        if (value instanceof GenericObject object) {
            return text(object.getNativeObject());
        }
        return value instanceof byte[] ? "bytes" : String.valueOf(value).replace("\n", " ");
    }

    private static String hex(byte[] data) {
        return data == null ? "null" : HexFormat.of().formatHex(data);
    }

    private static byte[] bytes(int length) {
        byte[] made = new byte[length];
        new Random(length).nextBytes(made);
        return made;
    }

    private static First first(String name, int amount) {
        First made = new First();
        made.name = name;
        made.amount = amount;
        return made;
    }

    private static Second second(String name, int amount) {
        Second made = new Second();
        made.name = name;
        made.amount = amount;
        made.price = amount / 2.0;
        made.tags = Arrays.asList("x", name);
        return made;
    }
}
