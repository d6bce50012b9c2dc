package main

import (
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

var deliveryScenarios = []scenario{
	{"acknowledging", acknowledging}, {"batch-index", batchIndex}, {"negative", negative}, {"dead-letters", deadLetters}, {"retry-letters", retryLetters}, {"incomplete-chunks", incompleteChunks},
}

func acknowledging(w *world) {
	for _, grouping := range []*pulsar.AckGroupingOptions{nil, {MaxSize: 1, MaxTime: 0}, {MaxSize: 3, MaxTime: 50 * time.Millisecond}} {
		for _, response := range []bool{false, true} {
			topic := w.topic(fmt.Sprint(grouping != nil && grouping.MaxSize == 1, grouping == nil, response))
			w.fill(topic, numbered("m", 10)...)
			consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, AckGroupingOptions: grouping, AckWithResponse: response})
			messages := []pulsar.Message{}
			for range 8 {
				messages = append(messages, next(consumer))
			}
			w.saw("cumulative", said(consumer.AckCumulative(messages[2])))
			w.saw("by id", said(consumer.AckID(messages[4].ID())))
			w.saw("a list", said(consumer.AckIDList([]pulsar.MessageID{messages[5].ID(), messages[6].ID()})))
			w.saw("twice", said(consumer.Ack(messages[5])))
			w.saw("cumulative by id", said(consumer.AckIDCumulative(messages[3].ID())))
			consumer.Close()
			again := w.consumer(pulsar.ConsumerOptions{Topic: topic})
			w.saw("left", rest(again))
		}
	}
	topic := w.topic("shared")
	w.fill(topic, "a", "b")
	shared := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, AckWithResponse: true})
	w.saw("cumulative on shared", said(shared.AckCumulative(next(shared))))
	w.saw("an id that is nowhere", said(shared.AckID(pulsar.NewMessageID(99999999, 0, -1, 0))))
	w.saw("still fine", said(shared.Ack(next(shared))))
}

// batch sends texts as one batch.
func (w *world) batch(topic string, texts ...string) {
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, BatchingMaxPublishDelay: time.Hour})
	defer producer.Close()
	for _, text := range texts {
		producer.SendAsync(background, &pulsar.ProducerMessage{Payload: []byte(text)}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { must(0, err) })
	}
	must(0, producer.FlushWithCtx(background))
}

func batchIndex(w *world) {
	for _, enabled := range []bool{false, true} {
		for _, kind := range []pulsar.SubscriptionType{pulsar.Exclusive, pulsar.Shared} {
			topic := w.topic(fmt.Sprint(enabled, kind))
			w.batch(topic, numbered("b", 10)...)
			consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: kind, EnableBatchIndexAcknowledgment: enabled, AckWithResponse: true})
			ids := []pulsar.MessageID{}
			for range 10 {
				ids = append(ids, next(consumer).ID())
			}
			w.saw("single ones", said(consumer.AckIDList([]pulsar.MessageID{ids[1], ids[3], ids[9]})))
			if kind == pulsar.Exclusive {
				w.saw("cumulative", said(consumer.AckIDCumulative(ids[4])))
			}
			consumer.Close()
			again := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: kind, EnableBatchIndexAcknowledgment: enabled})
			w.saw(fmt.Sprint("left, enabled ", enabled, " type ", kind), rest(again))
			again.Close()
			w.do("PUT", path(topic)+"/unload", nil)
			again = w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: kind, EnableBatchIndexAcknowledgment: enabled})
			w.saw("after an unload", rest(again))
		}
	}
}

type quickly struct{}

func (quickly) Next(count uint32) time.Duration { return 100 * time.Millisecond }

func negative(w *world) {
	for place, kind := range []pulsar.SubscriptionType{pulsar.Exclusive, pulsar.Shared, pulsar.Failover, pulsar.KeyShared} {
		topic := w.topic(fmt.Sprint(place))
		w.fill(topic, numbered("m", 4)...)
		options := pulsar.ConsumerOptions{Topic: topic, Type: kind, NackRedeliveryDelay: 300 * time.Millisecond}
		if place%2 == 1 {
			options.NackBackoffPolicy = quickly{}
		}
		consumer := w.consumer(options)
		counts := []string{}
		for range 4 {
			message := next(consumer)
			if string(message.Payload()) == "m1" {
				consumer.Nack(message)
			} else {
				must(0, consumer.Ack(message))
			}
		}
		for range 3 {
			message := next(consumer)
			counts = append(counts, fmt.Sprint(string(message.Payload()), " ", message.RedeliveryCount()))
			consumer.Nack(message)
		}
		w.saw(fmt.Sprint("redelivered, type ", place), counts)
		message := next(consumer)
		consumer.NackID(message.ID())
		message = next(consumer)
		w.saw("by id", message.RedeliveryCount())
		must(0, consumer.Ack(message))
		w.saw("left", rest(consumer))
	}
	topic := w.topic("batched")
	w.batch(topic, numbered("b", 5)...)
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, NackRedeliveryDelay: 300 * time.Millisecond, EnableBatchIndexAcknowledgment: true, AckWithResponse: true})
	for i := range 5 {
		message := next(consumer)
		if i == 2 {
			consumer.Nack(message)
		} else {
			must(0, consumer.Ack(message))
		}
	}
	w.saw("one of a batch", rest(consumer))
}

func deadLetters(w *world) {
	for place, policy := range []pulsar.DLQPolicy{
		{MaxDeliveries: 2, DeadLetterTopic: w.topic("dead")},
		{MaxDeliveries: 3, DeadLetterTopic: w.topic("named-dead"), InitialSubscriptionName: "first"},
		{MaxDeliveries: 2, DeadLetterTopic: w.topic("batched-dead"), ProducerOptions: pulsar.ProducerOptions{BatchingMaxPublishDelay: time.Millisecond, CompressionType: pulsar.ZSTD}},
	} {
		topic := w.topic(fmt.Sprint(place))
		producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
		must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("bad"), Key: "k", Properties: map[string]string{"p": "v"}, OrderingKey: "o", EventTime: time.UnixMilli(5)}))
		send(producer, "good")
		consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, DLQ: &policy, NackRedeliveryDelay: 200 * time.Millisecond})
		deliveries := 0
		for {
			message, err := within(consumer, 3*time.Second)
			if err != nil {
				break
			}
			if string(message.Payload()) == "good" {
				must(0, consumer.Ack(message))
				continue
			}
			deliveries++
			consumer.Nack(message)
		}
		w.saw("deliveries", deliveries >= int(policy.MaxDeliveries)) // more while the producer of dead letters is made
		dead := policy.DeadLetterTopic
		if policy.InitialSubscriptionName != "" {
			w.saw("initial subscription", w.subscription(dead, "first")["msgBacklog"])
		}
		letter := next(w.consumer(pulsar.ConsumerOptions{Topic: dead, SubscriptionName: "undertaker"}))
		found := letter.Properties()
		for _, name := range []string{"ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME"} {
			if _, there := found[name]; there {
				found[name] = "there"
			}
		}
		w.saw("letter", []any{string(letter.Payload()), found, letter.Key(), letter.OrderingKey(), letter.EventTime().UnixMilli()})
		consumer.Close()
	}
}

func retryLetters(w *world) {
	topic := w.topic("t")
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, RetryEnable: true,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2}, NackRedeliveryDelay: 300 * time.Millisecond})
	w.fill(topic, "again")
	for range 3 {
		message := next(consumer)
		found := message.Properties()
		if _, there := found["ORIGIN_MESSAGE_ID"]; there {
			found["ORIGIN_MESSAGE_ID"] = "there"
		}
		if _, there := found["ORIGIN_MESSAGE_IDY_TIME"]; there {
			found["ORIGIN_MESSAGE_IDY_TIME"] = "there"
		}
		w.saw("delivered", []any{message.Topic(), found})
		consumer.ReconsumeLaterWithCustomProperties(message, map[string]string{"mine": "1"}, time.Second)
	}
	dead := w.consumer(pulsar.ConsumerOptions{Topic: topic + "-s-DLQ", SubscriptionName: "undertaker"})
	w.saw("in the end", string(next(dead).Payload()))
	w.saw("topics", must(w.client.TopicPartitions(topic+"-s-RETRY")))
}

func incompleteChunks(w *world) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 1000})
	for i := range 5 {
		must(producer.Send(background, &pulsar.ProducerMessage{Payload: large(1)[:5000+i]}))
	}
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, MaxPendingChunkedMessage: 1, ExpireTimeOfIncompleteChunk: time.Second, AutoAckIncompleteChunk: true})
	sizes := []int{}
	ids := []pulsar.MessageID{}
	for range 5 {
		message := next(consumer)
		sizes = append(sizes, len(message.Payload()))
		ids = append(ids, message.ID())
	}
	w.saw("sizes", sizes)
	w.saw("backlog", w.subscription(topic, "s")["msgBacklog"])
	must(0, consumer.AckIDCumulative(ids[4]))
	w.saw("acknowledged", until(func() bool { return w.subscription(topic, "s")["msgBacklog"] == 0.0 }))
	inclusive := w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "in", StartMessageIDInclusive: true})
	w.saw("seek", said(inclusive.Seek(ids[2])))
	w.saw("from its first chunk", len(next(inclusive).Payload()))
}
