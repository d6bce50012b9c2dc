package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

var producerScenarios = []scenario{
	{"batches", batches}, {"compression", compression}, {"chunks", chunks}, {"sequence-ids", sequenceIDs},
	{"access-modes", accessModes}, {"routing", routing}, {"delayed", delayed}, {"fields", fields},
	{"encryption", encryption}, {"interceptors", interceptors}, {"limits-of-producers", limitsOfProducers},
	{"growing-partitions", growingPartitions}, {"too-large", tooLarge}, {"names", names},
}

func batches(w *world) {
	for place, builder := range []pulsar.BatcherBuilderType{pulsar.DefaultBatchBuilder, pulsar.KeyBasedBatchBuilder} {
		topic := w.topic(fmt.Sprint("b", place))
		producer := w.producer(pulsar.ProducerOptions{Topic: topic, BatcherBuilderType: builder, BatchingMaxMessages: 100, BatchingMaxPublishDelay: time.Hour})
		ids := make(chan pulsar.MessageID, 12)
		for i := range 12 {
			message := &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i)), Key: fmt.Sprint("k", i%3)}
			producer.SendAsync(background, message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { ids <- must(id, err) })
		}
		w.saw("flush", said(producer.FlushWithCtx(background)))
		places := map[string]int{}
		for range 12 {
			id := <-ids
			places[fmt.Sprint(id.BatchIdx(), "/", id.BatchSize())]++
		}
		w.saw("batches of receipts", places)
		w.saw("last sequence id", producer.LastSequenceID())
		consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic})
		seen := []string{}
		entries := map[int64]bool{}
		for range 12 {
			message := next(consumer)
			entries[message.ID().EntryID()] = true
			seen = append(seen, fmt.Sprint(message.Key(), ":", string(message.Payload()), " ", message.ID().BatchIdx(), "/", message.ID().BatchSize()))
		}
		w.saw("entries", len(entries))
		if builder == pulsar.KeyBasedBatchBuilder {
			sorted(seen) // the batches of the keys go out in the order of a map
		}
		w.saw("messages", seen)
		producer.Close()
		_, err := producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("late")})
		w.saw("send after close", said(err))
	}
}

func compression(w *world) {
	for _, codec := range []pulsar.CompressionType{pulsar.NoCompression, pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD} {
		for _, level := range []pulsar.CompressionLevel{pulsar.Default, pulsar.Faster, pulsar.Better} {
			for _, single := range []bool{false, true} {
				topic := w.topic(fmt.Sprint(codec, level, single))
				producer := w.producer(pulsar.ProducerOptions{Topic: topic, CompressionType: codec, CompressionLevel: level, DisableBatching: single})
				text := strings.Repeat("abcdefgh", 20_000)
				send(producer, text, "x")
				producer.Close()
				consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic})
				w.saw(fmt.Sprint("codec ", codec, " level ", level, " single ", single), []bool{
					string(next(consumer).Payload()) == text, len(next(consumer).Payload()) == 1})
				consumer.Close()
			}
		}
	}
}

func large(megabytes int) []byte {
	block := sha256.Sum256([]byte(fmt.Sprint(megabytes)))
	return bytes.Repeat(block[:], megabytes<<20/len(block))
}

func chunks(w *world) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true, EnableChunking: true, MaxPendingMessages: 100, SendTimeout: time.Minute})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, AckWithResponse: true, ReceiverQueueSize: 5})
	for _, megabytes := range []int{1, 12, 40} {
		payload := large(megabytes)
		id := must(producer.Send(background, &pulsar.ProducerMessage{Payload: payload, Properties: map[string]string{"p": "v"}}))
		message := next(consumer)
		w.saw(fmt.Sprint(megabytes, " MiB"), []any{bytes.Equal(message.Payload(), payload), message.Properties(), message.ID().EntryID() == id.EntryID()})
		w.saw("acknowledged", said(consumer.Ack(message)))
	}
	small := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 1000, CompressionType: pulsar.LZ4})
	must(small.Send(background, &pulsar.ProducerMessage{Payload: large(1)[:10_000]}))
	message := next(consumer)
	w.saw("small chunks", len(message.Payload()))
	consumer.Nack(message)
	consumer.Close()
	again := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	w.saw("again to the next consumer", len(next(again).Payload()))
	w.saw("refused together with batches", w.producing(pulsar.ProducerOptions{Topic: topic, EnableChunking: true}))
	last := must(again.GetLastMessageIDs())[0]
	w.saw("seek to a chunked message", said(again.Seek(last)))
}

func sequenceIDs(w *world) {
	topic := w.topic("t")
	options := pulsar.ProducerOptions{Topic: topic, Name: "counted", DisableBatching: true}
	producer := w.producer(options)
	w.saw("at first", producer.LastSequenceID())
	sendWith := func(number int64) string {
		_, err := producer.Send(background, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(number)), SequenceID: &number})
		return said(err)
	}
	for _, number := range []int64{5, 7, 7, 3, 8} {
		w.saw(fmt.Sprint("send ", number), sendWith(number))
	}
	w.saw("last", producer.LastSequenceID())
	w.saw("a second of this name", w.producing(options))
	producer.Close()
	producer = w.producer(options)
	w.saw("after coming again", producer.LastSequenceID())
	w.saw("send 8 again", sendWith(8))
	w.saw("send 9", sendWith(9))
	send(producer, "by itself")
	w.saw("then", producer.LastSequenceID())
	producer.Close()
	batched := w.producer(pulsar.ProducerOptions{Topic: topic, Name: "counted", BatchingMaxPublishDelay: time.Hour})
	for _, number := range []int64{9, 10, 11, 12} {
		batched.SendAsync(background, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint("b", number)), SequenceID: &number},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {})
	}
	w.saw("flush", said(batched.FlushWithCtx(background)))
	w.saw("last of the batch", batched.LastSequenceID())
	w.saw("stored", rest(w.consumer(pulsar.ConsumerOptions{Topic: topic})))
}

func accessModes(w *world) {
	mode := func(topic string, mode pulsar.ProducerAccessMode) pulsar.ProducerOptions {
		return pulsar.ProducerOptions{Topic: topic, ProducerAccessMode: mode}
	}
	topic := w.topic("exclusive")
	first := w.producer(mode(topic, pulsar.ProducerAccessModeExclusive))
	w.saw("a second exclusive one", w.producing(mode(topic, pulsar.ProducerAccessModeExclusive)))
	w.saw("a shared one beside it", w.producing(mode(topic, pulsar.ProducerAccessModeShared)))
	waiting := make(chan pulsar.Producer, 1)
	go func() {
		producer, err := w.client.CreateProducer(mode(topic, pulsar.ProducerAccessModeWaitForExclusive))
		w.saw("the waiting one", said(err))
		waiting <- producer
	}()
	select {
	case <-waiting:
		w.saw("it waits", false)
	case <-time.After(quiet):
		w.saw("it waits", true)
	}
	send(first, "of the first")
	first.Close()
	second := <-waiting
	send(second, "of the second")
	w.saw("stored", rest(w.consumer(pulsar.ConsumerOptions{Topic: topic})))
	second.Close()
	w.saw("shared when all are gone", w.producing(mode(topic, pulsar.ProducerAccessModeShared)))
	topic = w.topic("shared")
	shared := w.producer(mode(topic, pulsar.ProducerAccessModeShared))
	w.saw("exclusive beside a shared one", w.producing(mode(topic, pulsar.ProducerAccessModeExclusive)))
	shared.Close()
	epoch := w.producer(mode(topic, pulsar.ProducerAccessModeExclusive))
	send(epoch, "x")
	w.do("PUT", path(topic)+"/unload", nil)
	send(epoch, "after an unload")
	w.saw("the exclusive one stays", w.producing(mode(topic, pulsar.ProducerAccessModeExclusive)))
}

func routing(w *world) {
	for place, scheme := range []pulsar.HashingScheme{pulsar.JavaStringHash, pulsar.Murmur3_32Hash} {
		topic := w.topic(fmt.Sprint("p", place))
		w.do("PUT", path(topic)+"/partitions", 4)
		producer := w.producer(pulsar.ProducerOptions{Topic: topic, HashingScheme: scheme, DisableBatching: true})
		partitions := map[string]int32{}
		for i := range 12 {
			key := fmt.Sprint("key-", i)
			partitions[key] = must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("x"), Key: key})).PartitionIdx()
		}
		w.saw("partitions by key", partitions)
		consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic})
		got := map[string]string{}
		for range 12 {
			message := next(consumer)
			got[message.Key()] = message.Topic()
		}
		w.saw("topics of messages", got)
		w.saw("partitions", must(w.client.TopicPartitions(topic)))
	}
	topic := w.topic("custom")
	w.do("PUT", path(topic)+"/partitions", 3)
	router := func(message *pulsar.ProducerMessage, topic pulsar.TopicMetadata) int {
		return int(topic.NumPartitions()) - 1
	}
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, MessageRouter: router})
	w.saw("by a router", []int32{send(producer, "a")[0].PartitionIdx(), send(producer, "b")[0].PartitionIdx()})
	spread := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	seen := map[int32]bool{}
	for _, id := range send(spread, numbered("n", 9)...) {
		seen[id.PartitionIdx()] = true
	}
	w.saw("without keys", len(seen))
}

func delayed(w *world) {
	topic := w.topic("t")
	shared := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, SubscriptionName: "shared"})
	keyed := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared, SubscriptionName: "keyed"})
	alone := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "alone"})
	producer := w.producer(pulsar.ProducerOptions{Topic: topic})
	began := time.Now()
	must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("after"), DeliverAfter: 3 * time.Second}))
	must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("at"), DeliverAt: began.Add(6 * time.Second)}))
	send(producer, "now")
	w.saw("exclusive", take(alone, 3))
	order := func(consumer pulsar.Consumer) []string {
		found := []string{}
		for range 3 {
			message := next(consumer)
			waited := time.Since(began).Round(3 * time.Second)
			found = append(found, fmt.Sprint(string(message.Payload()), waited >= map[string]time.Duration{"after": 3 * time.Second, "at": 6 * time.Second}[string(message.Payload())]))
			must(0, consumer.Ack(message))
		}
		return found
	}
	w.saw("shared", order(shared))
	w.saw("key shared", sorted(order(keyed)))
}

func fields(w *world) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, Properties: map[string]string{"who": "me"}, Name: "named"})
	must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("x"), Key: "k", OrderingKey: "o",
		Properties: map[string]string{"a": "1", "ü": "ß"}, EventTime: time.UnixMilli(1234567890123), DisableReplication: true}))
	must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("plain")}))
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Properties: map[string]string{"c": "v"}, Name: "reader-of-fields"})
	message := next(consumer)
	w.saw("message", []any{message.Topic(), message.ProducerName(), message.Properties(), message.Key(), message.OrderingKey(),
		message.EventTime().UnixMilli(), message.RedeliveryCount(), message.IsReplicated(), message.GetReplicatedFrom(), message.Index() == nil, message.BrokerPublishTime() == nil})
	plain := next(consumer)
	w.saw("with nothing else", []any{string(plain.Payload()), plain.Key(), plain.EventTime().UnixMilli() <= 0, plain.Properties()})
	w.saw("consumer", []string{consumer.Name(), consumer.Subscription()})
	publishers := w.stats(topic)["publishers"].([]any)
	w.saw("publisher in stats", []any{len(publishers), publishers[0].(map[string]any)["producerName"], publishers[0].(map[string]any)["metadata"]})
	found := w.consumers(topic, "s")[0]
	w.saw("consumer in stats", []any{found["consumerName"], found["metadata"]})
	w.saw("replication clusters", said(func() error {
		_, err := producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("r"), ReplicationClusters: []string{"local"}})
		return err
	}()))
	id := message.ID()
	again := must(pulsar.DeserializeMessageID(id.Serialize()))
	w.saw("an id there and back", []bool{again.LedgerID() == id.LedgerID(), again.EntryID() == id.EntryID()})
}

func encryption(w *world) {
	topic := w.topic("t")
	keys := os.Getenv("GO_CLIENT_KEYS")
	reader := crypto.NewFileKeyReader(keys+"/public.pem", keys+"/private.pem")
	for _, single := range []bool{true, false} {
		producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: single, CompressionType: pulsar.ZSTD,
			Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: reader, Keys: []string{"mine"}}})
		send(producer, fmt.Sprint("secret ", single))
		producer.Close()
	}
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Decryption: &pulsar.MessageDecryptionInfo{KeyReader: reader, ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionFail}})
	for range 2 {
		message := next(consumer)
		w.saw("decrypted", []any{string(message.Payload()), message.GetEncryptionContext() == nil})
	}
	other := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "no-key", Decryption: &pulsar.MessageDecryptionInfo{ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume,
		KeyReader: crypto.NewFileKeyReader("missing", "missing")}})
	message := next(other)
	context := message.GetEncryptionContext()
	w.saw("without the key", []any{context != nil, context != nil && len(context.Keys) == 1, bytes.Contains(message.Payload(), []byte("secret"))})
	namespace := w.namespace("must")
	w.do("POST", "namespaces/"+namespace+"/encryptionRequired", true)
	w.saw("where encryption is required", w.producing(pulsar.ProducerOptions{Topic: "persistent://" + namespace + "/t"}))
	encrypted := pulsar.ProducerOptions{Topic: "persistent://" + namespace + "/t", Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: reader, Keys: []string{"mine"}}}
	w.saw("with encryption there", w.producing(encrypted))
}

type counting struct{ before, acknowledged, negative atomic.Int32 }

func (c *counting) BeforeSend(_ pulsar.Producer, message *pulsar.ProducerMessage) {
	c.before.Add(1)
	message.Properties = map[string]string{"by": "interceptor"}
}
func (c *counting) OnSendAcknowledgement(pulsar.Producer, *pulsar.ProducerMessage, pulsar.MessageID) {
	c.acknowledged.Add(1)
}
func (c *counting) BeforeConsume(pulsar.ConsumerMessage)            { c.before.Add(1) }
func (c *counting) OnAcknowledge(pulsar.Consumer, pulsar.MessageID) { c.acknowledged.Add(1) }
func (c *counting) OnNegativeAcksSend(_ pulsar.Consumer, ids []pulsar.MessageID) {
	c.negative.Add(int32(len(ids)))
}

func interceptors(w *world) {
	topic := w.topic("t")
	sending, receiving := &counting{}, &counting{}
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, Interceptors: pulsar.ProducerInterceptors{sending}})
	send(producer, "a", "b")
	until(func() bool { return sending.acknowledged.Load() == 2 })
	w.saw("producer", []int32{sending.before.Load(), sending.acknowledged.Load()})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, Interceptors: pulsar.ConsumerInterceptors{receiving}, NackRedeliveryDelay: 300 * time.Millisecond})
	message := next(consumer)
	w.saw("properties", message.Properties())
	must(0, consumer.Ack(message))
	consumer.Nack(next(consumer))
	again := next(consumer)
	w.saw("again", []any{string(again.Payload()), again.RedeliveryCount()})
	w.saw("consumer", []int32{receiving.before.Load(), receiving.acknowledged.Load(), receiving.negative.Load()})
}

func limitsOfProducers(w *world) {
	topic := w.topic("t")
	full := w.producer(pulsar.ProducerOptions{Topic: topic, MaxPendingMessages: 1, DisableBlockIfQueueFull: true, BatchingMaxPublishDelay: time.Hour})
	errs := make(chan error, 3)
	for range 3 {
		full.SendAsync(background, &pulsar.ProducerMessage{Payload: []byte("x")}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { errs <- err })
	}
	must(0, full.FlushWithCtx(background))
	found := []string{said(<-errs), said(<-errs), said(<-errs)}
	w.saw("a queue of one", sorted(found))
	small := must(pulsar.NewClient(pulsar.ClientOptions{URL: w.url, MemoryLimitBytes: 1000, Logger: logger()}))
	defer small.Close()
	producer := must(small.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBlockIfQueueFull: true, BatchingMaxPublishDelay: time.Hour}))
	for range 3 {
		producer.SendAsync(background, &pulsar.ProducerMessage{Payload: make([]byte, 600)}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { errs <- err })
	}
	must(0, producer.FlushWithCtx(background))
	found = []string{said(<-errs), said(<-errs), said(<-errs)}
	w.saw("memory for one and a half", sorted(found))
	limit, cancel := context.WithCancel(background)
	cancel()
	_, err := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true}).Send(limit, &pulsar.ProducerMessage{Payload: []byte("x")})
	w.saw("a cancelled context", said(err))
}

func growingPartitions(w *world) {
	topic := w.topic("t")
	w.do("PUT", path(topic)+"/partitions", 2)
	seen := map[int32]bool{}
	router := func(message *pulsar.ProducerMessage, topic pulsar.TopicMetadata) int {
		return int(topic.NumPartitions()) - 1
	}
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, PartitionsAutoDiscoveryInterval: 300 * time.Millisecond, MessageRouter: router})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, AutoDiscoveryPeriod: 300 * time.Millisecond})
	send(producer, "before")
	w.saw("before", take(consumer, 1))
	w.do("POST", path(topic)+"/partitions", 5)
	w.saw("found", until(func() bool {
		id := send(producer, "after")[0]
		seen[id.PartitionIdx()] = true
		return id.PartitionIdx() == 4
	}))
	for {
		if message := next(consumer); strings.HasSuffix(message.Topic(), "-4") {
			w.saw("consumed from", message.Topic())
			break
		}
	}
	w.saw("partitions", len(must(w.client.TopicPartitions(topic))))
	status, _ := w.call("POST", path(topic)+"/partitions", 3)
	w.saw("no fewer", status)
}

func tooLarge(w *world) {
	topic := w.topic("t")
	for _, single := range []bool{true, false} {
		producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: single})
		_, err := producer.Send(background, &pulsar.ProducerMessage{Payload: large(6)})
		w.saw(fmt.Sprint("6 MiB single ", single), said(err))
		w.saw("and then", len(send(producer, "small")))
		compressed := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: single, CompressionType: pulsar.ZSTD})
		_, err = compressed.Send(background, &pulsar.ProducerMessage{Payload: make([]byte, 20<<20)})
		w.saw("20 MiB of zeros, compressed", said(err))
	}
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic})
	sizes := []int{}
	for range 4 {
		message, err := within(consumer, 5*time.Second)
		if err != nil {
			break
		}
		sizes = append(sizes, len(message.Payload()))
	}
	w.saw("stored", sizes)
	name := path(topic)
	w.do("POST", name+"/maxMessageSize", 1000)
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true, SendTimeout: 3 * time.Second})
	var once sync.Once
	w.saw("over the topic's limit", until(func() bool {
		_, err := producer.Send(background, &pulsar.ProducerMessage{Payload: make([]byte, 2000)})
		if err != nil {
			once.Do(func() { w.saw("the error", said(err)) })
		}
		return err != nil
	}))
}

func names(w *world) {
	for _, name := range []string{"no-namespace/t", "persistent://public/default/", "persistent://nowhere/default/t", "persistent://public/nowhere/t", "other://public/default/t", "a b/c d/e f"} {
		w.saw("producer on "+name, w.producing(pulsar.ProducerOptions{Topic: name}))
		w.saw("consumer on "+name, w.subscribing(pulsar.ConsumerOptions{Topic: name}))
	}
	short := w.producer(pulsar.ProducerOptions{Topic: "names-short"})
	w.saw("a short name", short.Topic())
	w.saw("blank in a name", w.producing(pulsar.ProducerOptions{Topic: w.topic("a b ü/%")}))
	transient := "non-persistent://public/default/names"
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: transient, Type: pulsar.Shared})
	send(w.producer(pulsar.ProducerOptions{Topic: transient, DisableBatching: true}), "passing")
	w.saw("non-persistent", take(consumer, 1))
	w.saw("seek there", said(consumer.Seek(pulsar.EarliestMessageID())))
	_, err := consumer.GetLastMessageIDs()
	w.saw("last message id there", said(err))
	w.saw("no topic", w.producing(pulsar.ProducerOptions{}))
}
