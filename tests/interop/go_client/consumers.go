package main

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

var consumerScenarios = []scenario{
	{"exclusive", exclusive}, {"failover", failover}, {"key-shared", keyShared}, {"outstanding", outstanding},
	{"several-topics", severalTopics}, {"patterns", patterns}, {"modes", modes}, {"properties", properties}, {"unsubscribe", unsubscribe},
}

func exclusive(w *world) {
	topic := w.topic("t")
	w.fill(topic, numbered("m", 4)...)
	first := w.consumer(pulsar.ConsumerOptions{Topic: topic, Name: "first"})
	w.saw("a second", w.subscribing(pulsar.ConsumerOptions{Topic: topic}))
	w.saw("a shared one", w.subscribing(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared}))
	w.saw("read", take(first, 2))
	first.Close()
	w.saw("seek after close", said(first.Seek(pulsar.EarliestMessageID())))
	shared := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	w.saw("then of another type", take(shared, 2))
	w.saw("exclusive beside it", w.subscribing(pulsar.ConsumerOptions{Topic: topic}))
	w.saw("failover beside it", w.subscribing(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover}))
	w.saw("key shared beside it", w.subscribing(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared}))
	w.saw("without a name", said(func() error { _, err := w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic}); return err }()))
	w.saw("compacted and shared", w.subscribing(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, ReadCompacted: true, SubscriptionName: "compacted"}))
}

type activity chan string

func (a activity) BecameActive(consumer pulsar.Consumer, topic string, partition int32) {
	a <- fmt.Sprint("active ", topic, " ", partition)
}
func (a activity) BecameInactive(consumer pulsar.Consumer, topic string, partition int32) {
	a <- fmt.Sprint("inactive ", topic, " ", partition)
}
func (a activity) heard() string {
	select {
	case text := <-a:
		return text
	case <-time.After(8 * time.Second):
		return "nothing"
	}
}

func failover(w *world) {
	topic := w.topic("t")
	w.fill(topic, numbered("m", 4)...)
	a, b := make(activity, 10), make(activity, 10)
	first := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: "a", EventListener: a})
	w.saw("the first hears", a.heard())
	w.saw("it reads", take(first, 2))
	second := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: "b", EventListener: b})
	w.saw("the second hears", b.heard())
	_, err := within(second, quiet)
	w.saw("the second reads", said(err))
	first.Close()
	w.saw("then it hears", b.heard())
	w.saw("and reads", take(second, 2))
	topic = w.topic("p")
	w.do("PUT", path(topic)+"/partitions", 4)
	one := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: "one"})
	two := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: "two"})
	time.Sleep(5 * time.Second)
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	for i := range 40 {
		must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i)), Key: fmt.Sprint("k", i)}))
	}
	w.saw("partitions are shared out", []bool{len(rest(one)) > 0, len(rest(two)) > 0})
}

func keyShared(w *world) {
	keyed := func(topic string, count int) {
		producer := w.producer(pulsar.ProducerOptions{Topic: topic, BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
		for i := range count {
			must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i)), Key: fmt.Sprint("k", i%20)}))
		}
	}
	keys := func(consumer pulsar.Consumer) map[string]int {
		found := map[string]int{}
		for {
			message, err := within(consumer, quiet)
			if err != nil {
				return found
			}
			found[message.Key()]++
			must(0, consumer.Ack(message))
		}
	}
	for place, policy := range []*pulsar.KeySharedPolicy{nil, {Mode: pulsar.KeySharedPolicyModeAutoSplit, AllowOutOfOrderDelivery: true}} {
		topic := w.topic(fmt.Sprint("auto", place))
		one := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared, KeySharedPolicy: policy, Name: "one"})
		two := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared, KeySharedPolicy: policy, Name: "two"})
		keyed(topic, 60)
		of1, of2 := keys(one), keys(two)
		both := 0
		for key := range of1 {
			if of2[key] > 0 {
				both++
			}
		}
		// Which of them has a key hangs on how a broker hashes its consumers.
		w.saw("auto split", []any{len(of1) > 0, len(of2) > 0, len(of1) + len(of2), both})
		w.saw("sticky beside it", w.subscribing(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared, KeySharedPolicy: must(pulsar.NewKeySharedPolicySticky([]int{0, 65535}))}))
		one.Close()
		keyed(topic, 20)
		w.saw("the other has all", len(keys(two)))
	}
	topic := w.topic("sticky")
	sticky := func(ranges ...int) *pulsar.KeySharedPolicy { return must(pulsar.NewKeySharedPolicySticky(ranges)) }
	low := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared, KeySharedPolicy: sticky(0, 30000)})
	w.saw("an overlapping range", w.subscribing(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared, KeySharedPolicy: sticky(20000, 40000)}))
	keyed(topic, 20)
	high := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared, KeySharedPolicy: sticky(30001, 65535)})
	w.saw("sticky", []any{keys(low), keys(high)})
	w.saw("auto split beside it", w.subscribing(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared}))
	_, err := pulsar.NewKeySharedPolicySticky([]int{5, 1})
	w.saw("a bad range", said(err))
	ordering := w.topic("ordering")
	x := w.consumer(pulsar.ConsumerOptions{Topic: ordering, Type: pulsar.KeyShared, KeySharedPolicy: sticky(0, 30000)})
	y := w.consumer(pulsar.ConsumerOptions{Topic: ordering, Type: pulsar.KeyShared, KeySharedPolicy: sticky(30001, 65535)})
	producer := w.producer(pulsar.ProducerOptions{Topic: ordering, DisableBatching: true})
	for i := range 20 {
		must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i)), Key: "same", OrderingKey: fmt.Sprint("o", i)}))
	}
	w.saw("by ordering key", []any{sorted(rest(x)), sorted(rest(y))})
}

// outstanding closes consumers while messages are outstanding, with queues of several sizes.
func outstanding(w *world) {
	topic := w.topic("t")
	w.fill(topic, numbered("m", 10)...)
	one := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, Name: "one"})
	next(one)
	two := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, Name: "two"})
	one.Close()
	w.saw("all come to the other", sorted(take(two, 10)))
	w.saw("unacknowledged", w.consumers(topic, "s")[0]["unackedMessages"])
	two.Close()
	topic = w.topic("zero")
	w.fill(topic, numbered("m", 4)...)
	zero := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, EnableZeroQueueConsumer: true})
	w.saw("with no queue", take(zero, 2))
	other := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, ReceiverQueueSize: 1})
	w.saw("a queue of one", sorted(rest(other)))
	zero.Close()
	zero = w.consumer(pulsar.ConsumerOptions{Topic: topic, EnableZeroQueueConsumer: true, SubscriptionName: "alone"})
	message := next(zero)
	w.saw("alone", string(message.Payload()))
	w.saw("seek", said(zero.Seek(pulsar.EarliestMessageID())))
	w.saw("after the seek", string(next(zero).Payload()))
	partitioned := w.topic("parts")
	w.do("PUT", path(partitioned)+"/partitions", 2)
	w.saw("no queue on partitions", w.subscribing(pulsar.ConsumerOptions{Topic: partitioned, EnableZeroQueueConsumer: true}))
	topic = w.topic("scaled")
	w.fill(topic, numbered("m", 30)...)
	scaled := w.consumer(pulsar.ConsumerOptions{Topic: topic, EnableAutoScaledReceiverQueueSize: true, ReceiverQueueSize: 20})
	w.saw("a growing queue", len(take(scaled, 30)))
	channel := make(chan pulsar.ConsumerMessage, 100)
	w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "channel", MessageChannel: channel})
	for range 30 {
		got := <-channel
		must(0, got.Consumer.Ack(got.Message))
	}
	w.saw("by a channel of ours", true)
	chosen := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "chan"})
	texts := []string{}
	for got := range chosen.Chan() {
		texts = append(texts, string(got.Payload()))
		if len(texts) == 30 {
			break
		}
	}
	w.saw("by its channel", texts[29])
}

func severalTopics(w *world) {
	topics := []string{w.topic("a"), w.topic("b"), w.topic("c")}
	w.do("PUT", path(topics[2])+"/partitions", 2)
	consumer := w.consumer(pulsar.ConsumerOptions{Topics: topics, Type: pulsar.Shared, AckWithResponse: true})
	for _, topic := range topics {
		w.fill(topic, numbered("m", 4)...)
	}
	w.saw("all", sorted(take(consumer, 12)))
	ids := must(consumer.GetLastMessageIDs())
	found := []string{}
	for _, id := range ids {
		found = append(found, id.Topic())
	}
	w.saw("last ids of", sorted(found))
	w.saw("seek", said(consumer.Seek(pulsar.EarliestMessageID())))
	w.saw("seek by time", said(consumer.SeekByTime(time.Now().Add(-time.Hour))))
	w.saw("again", len(rest(consumer)))
	w.saw("unsubscribe", said(consumer.Unsubscribe()))
	w.saw("one that cannot be", w.subscribing(pulsar.ConsumerOptions{Topics: []string{topics[0], "persistent://nowhere/x/t"}}))
}

func patterns(w *world) {
	namespace := w.namespace("n")
	base := "persistent://" + namespace + "/"
	w.fill(base+"orders-a", "a")
	w.fill(base+"other", "other")
	w.do("PUT", path(base+"orders-p")+"/partitions", 2)
	consumer := w.consumer(pulsar.ConsumerOptions{TopicsPattern: base + "orders-.*", AutoDiscoveryPeriod: 500 * time.Millisecond, Type: pulsar.Shared})
	w.saw("at first", take(consumer, 1))
	w.fill(base+"orders-b", "b")
	w.saw("a new topic", take(consumer, 1))
	w.fill(base+"orders-p", "p")
	w.saw("a partition", take(consumer, 1))
	w.saw("nothing else", rest(consumer))
	w.saw("unsubscribe", said(consumer.Unsubscribe()))
	consumer.Close()
	w.saw("a namespace that is not there", w.subscribing(pulsar.ConsumerOptions{TopicsPattern: "persistent://public/nowhere/x.*"}))
	w.saw("a bad pattern", w.subscribing(pulsar.ConsumerOptions{TopicsPattern: base + "((("})[:5])
}

func modes(w *world) {
	topic := w.topic("t")
	ids := w.fill(topic, numbered("m", 6)...)
	nonDurable := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionMode: pulsar.NonDurable, SubscriptionName: "passing"})
	w.saw("non durable", take(nonDurable, 3))
	w.saw("durable in stats", w.subscription(topic, "passing")["isDurable"])
	nonDurable.Close()
	w.saw("it is gone", until(func() bool { return w.subscription(topic, "passing") == nil }))
	durable := w.consumer(pulsar.ConsumerOptions{Topic: topic})
	take(durable, 6)
	durable.Close()
	w.saw("non durable on a durable one", w.subscribing(pulsar.ConsumerOptions{Topic: topic, SubscriptionMode: pulsar.NonDurable}))
	inclusive := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "in", StartMessageIDInclusive: true})
	w.saw("seek, inclusive", said(inclusive.Seek(ids[3])))
	w.saw("first then", string(next(inclusive).Payload()))
	plain := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "out"})
	w.saw("seek, exclusive", said(plain.Seek(ids[3])))
	w.saw("first then", string(next(plain).Payload()))
	w.saw("seek to the end", said(plain.Seek(pulsar.LatestMessageID())))
	w.fill(topic, "new")
	w.saw("only what is new", rest(plain))
	w.saw("seek by time", said(plain.SeekByTime(time.Now().Add(time.Hour))))
	w.saw("nothing after the future", rest(plain))
	w.saw("seek nowhere", said(plain.Seek(pulsar.NewMessageID(99999999, 0, -1, -1))))
	w.saw("then", len(rest(plain)))
	latest := must(w.client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "latest"}))
	w.saw("from the end", rest(latest))
	parts := w.topic("parts")
	w.do("PUT", path(parts)+"/partitions", 3)
	first := w.fill(parts, numbered("m", 9)...)
	over := w.consumer(pulsar.ConsumerOptions{Topic: parts})
	take(over, 9)
	w.saw("seek by time over partitions", said(over.SeekByTime(time.Now().Add(-time.Hour))))
	w.saw("all again", len(rest(over)))
	w.saw("seek by id over partitions", said(over.Seek(first[0])))
	w.saw("seek to the start over partitions", said(over.Seek(pulsar.EarliestMessageID())))
	lastIDs := must(over.GetLastMessageIDs())
	w.saw("last ids", len(lastIDs))
	batched := w.topic("batched")
	producer := w.producer(pulsar.ProducerOptions{Topic: batched, BatchingMaxPublishDelay: time.Hour})
	places := make(chan pulsar.MessageID, 6)
	for i := range 6 {
		producer.SendAsync(background, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint("b", i))}, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { places <- must(id, err) })
	}
	must(0, producer.FlushWithCtx(background))
	all := []pulsar.MessageID{<-places, <-places, <-places, <-places, <-places, <-places}
	in := w.consumer(pulsar.ConsumerOptions{Topic: batched, StartMessageIDInclusive: true})
	w.saw("seek into a batch", said(in.Seek(all[3])))
	w.saw("first then", string(next(in).Payload()))
	last := must(in.GetLastMessageIDs())[0]
	w.saw("last id of a batch", []any{last.BatchIdx(), last.PartitionIdx()})
}

func properties(w *world) {
	topic := w.topic("t")
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionProperties: map[string]string{"a": "1"}, ReplicateSubscriptionState: true})
	w.saw("subscription", []any{w.subscription(topic, "s")["subscriptionProperties"], w.subscription(topic, "s")["isReplicated"], w.subscription(topic, "s")["type"]})
	consumer.Close()
	w.saw("with others", w.subscribing(pulsar.ConsumerOptions{Topic: topic, SubscriptionProperties: map[string]string{"a": "2"}}))
	w.saw("kept", w.subscription(topic, "s")["subscriptionProperties"])
	named := must(pulsar.NewClient(pulsar.ClientOptions{URL: w.url, Description: "orders", Logger: logger(), MaxConnectionsPerBroker: 3, LookupProperties: map[string]string{"x": "y"}}))
	defer named.Close()
	must(named.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "version"}))
	w.saw("client version", digits.ReplaceAllString(fmt.Sprint(w.consumers(topic, "version")[0]["clientVersion"]), "N"))
}

func unsubscribe(w *world) {
	topic := w.topic("t")
	w.fill(topic, "x")
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	other := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	w.saw("while another is there", said(consumer.Unsubscribe()))
	other.Close()
	w.saw("alone", said(consumer.Unsubscribe()))
	w.saw("again", said(consumer.Unsubscribe()))
	w.saw("gone", w.subscription(topic, "s") == nil)
	consumer = w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	other = w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	w.saw("by force", said(consumer.UnsubscribeForce()))
	parts := w.topic("parts")
	w.do("PUT", path(parts)+"/partitions", 2)
	over := w.consumer(pulsar.ConsumerOptions{Topic: parts})
	w.saw("partitions", said(over.Unsubscribe()))
	var closed atomic.Bool
	go func() { other.Close(); closed.Store(true) }()
	w.saw("the other can be closed", until(closed.Load))
}
