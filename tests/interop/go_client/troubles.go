package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

var troubleScenarios = []scenario{
	{"unloaded", unloaded}, {"terminated", terminated}, {"deleted-topic", deletedTopic}, {"deleted-namespace", deletedNamespace},
	{"deleted-subscription", deletedSubscription}, {"no-creation", noCreation}, {"limits-of-topics", limitsOfTopics}, {"transactions", transactions},
}

// impatient gives up after a while instead of trying for ever.
func (w *world) impatient() pulsar.Client {
	return must(pulsar.NewClient(pulsar.ClientOptions{URL: w.url, OperationTimeout: 5 * time.Second, Logger: logger()}))
}

// sendSaid waits for a while only: a message that is sent while the client gives its producer up may never be answered.
func sendSaid(producer pulsar.Producer, text string) string {
	bounded, cancel := context.WithTimeout(background, patience/2)
	defer cancel()
	_, err := producer.Send(bounded, &pulsar.ProducerMessage{Payload: []byte(text)})
	return said(err)
}

// unloaded has a namespace of its own: what others do meanwhile in one that is unloaded is refused now and then, by Apache's broker too.
func unloaded(w *world) {
	namespace := w.namespace("n")
	topic := "persistent://" + namespace + "/t"
	for _, kind := range []pulsar.SubscriptionType{pulsar.Exclusive, pulsar.Shared, pulsar.KeyShared, pulsar.Failover} {
		producer := w.producer(pulsar.ProducerOptions{Topic: topic, Name: "stays"})
		options := pulsar.ConsumerOptions{Topic: topic, Type: kind, SubscriptionName: fmt.Sprint("s", kind), AckWithResponse: true}
		consumer := w.consumer(options)
		reader := must(w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()}))
		// A message that was not acknowledged in time may come twice.
		reach := func(text string) {
			for message := next(consumer); ; message = next(consumer) {
				acknowledged := consumer.Ack(message)
				if string(message.Payload()) == text {
					w.saw("acknowledged "+text, said(acknowledged))
					break
				}
			}
			for string(nextRead(reader).Payload()) != text {
			}
			w.saw("read", text)
		}
		for _, unload := range []string{"", path(topic) + "/unload", "namespaces/" + namespace + "/unload"} {
			if unload != "" {
				w.do("PUT", unload, nil)
			}
			text := fmt.Sprint(unload, kind)
			w.saw("send "+unload, sendSaid(producer, text))
			reach(text)
		}
		w.saw("last sequence id", producer.LastSequenceID())
		producer.Close()
		consumer.Close()
		reader.Close()
	}
}

func terminated(w *world) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, SendTimeout: 5 * time.Second})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic})
	send(producer, "last")
	w.do("POST", path(topic)+"/terminate", nil)
	time.Sleep(2 * quiet) // until the producer has come again and was refused; before, a message may meet either error
	w.saw("send", sendSaid(producer, "late"))
	w.saw("and again", sendSaid(producer, "later"))
	w.saw("a new producer", w.producing(pulsar.ProducerOptions{Topic: topic}))
	w.saw("still consumed", take(consumer, 1))
	consumer.Close()
	w.saw("a new consumer", w.subscribing(pulsar.ConsumerOptions{Topic: topic}))
	w.saw("read", w.read(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()}))
}

func deletedTopic(w *world) {
	topic := w.topic("t")
	producer := w.producer(pulsar.ProducerOptions{Topic: topic})
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic})
	send(producer, "x")
	status, _ := w.call("DELETE", path(topic), nil)
	w.saw("while it is used", status)
	take(consumer, 1)
	w.do("DELETE", path(topic)+"?force=true", nil)
	w.saw("send", sendSaid(producer, "to the new one"))
	w.saw("received", said(func() error { _, err := within(consumer, patience); return err }()))
	w.saw("a new producer", w.producing(pulsar.ProducerOptions{Topic: topic}))
}

func deletedNamespace(w *world) {
	namespace := w.namespace("n")
	topic := "persistent://" + namespace + "/t"
	client := w.impatient()
	defer client.Close()
	producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: topic, SendTimeout: 5 * time.Second}))
	send(producer, "x")
	status, _ := w.call("DELETE", "namespaces/"+namespace, nil)
	w.saw("while it is used", status)
	w.do("DELETE", "namespaces/"+namespace+"?force=true", nil)
	w.saw("the producer ends", until(func() bool { return strings.HasPrefix(sendSaid(producer, "y"), "result 38") }))
	_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	w.saw("a new producer", said(err))
	_, err = client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"})
	w.saw("a new consumer", said(err))
	_, err = client.TopicPartitions(topic)
	w.saw("partitions", said(err))
}

func deletedSubscription(w *world) {
	topic := w.topic("t")
	w.fill(topic, "a", "b")
	retries := uint(2)
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared, AckWithResponse: true, MaxReconnectToBroker: &retries})
	message := next(consumer)
	status, _ := w.call("DELETE", path(topic)+"/subscription/s", nil)
	w.saw("while it is used", status)
	w.do("DELETE", path(topic)+"/subscription/s?force=true", nil)
	_ = consumer.Ack(message) // a matter of time at either broker: the client may not have come again yet
	w.saw("it comes again by itself", until(func() bool { return len(w.consumers(topic, "s")) == 1 }))
	status, _ = w.call("POST", path(topic)+"/subscription/s/skip_all", nil)
	w.saw("skip all", status)
	w.fill(topic, "c")
	w.saw("then", len(rest(consumer)) > 0)
}

func noCreation(w *world) {
	namespace := w.namespace("n")
	w.do("POST", "namespaces/"+namespace+"/autoTopicCreation", map[string]any{"allowAutoTopicCreation": false})
	w.do("POST", "namespaces/"+namespace+"/autoSubscriptionCreation", map[string]any{"allowAutoSubscriptionCreation": false})
	topic := "persistent://" + namespace + "/t"
	client := w.impatient()
	defer client.Close()
	_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	w.saw("producer", said(err))
	_, err = client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"})
	w.saw("consumer", said(err))
	_, err = client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	w.saw("reader", said(err))
	_, err = client.TopicPartitions(topic)
	w.saw("partitions", said(err))
	w.do("PUT", path(topic), nil)
	_, err = client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	w.saw("producer of one that is there", said(err))
	_, err = client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"})
	w.saw("a subscription that is not there", said(err))
	_, err = client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	w.saw("a reader needs none", said(err))
	w.do("PUT", path(topic)+"/subscription/s", nil)
	_, err = client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"})
	w.saw("one that is", said(err))
	namespace = w.namespace("parts")
	w.do("POST", "namespaces/"+namespace+"/autoTopicCreation", map[string]any{"allowAutoTopicCreation": true, "topicType": "partitioned", "defaultNumPartitions": 3})
	made := "persistent://" + namespace + "/made"
	w.producer(pulsar.ProducerOptions{Topic: made})
	w.saw("made with partitions", len(must(client.TopicPartitions(made))))
}

func limitsOfTopics(w *world) {
	namespace := w.namespace("n")
	topic := "persistent://" + namespace + "/t"
	client := w.impatient()
	defer client.Close()
	w.do("POST", "namespaces/"+namespace+"/maxProducersPerTopic", 1)
	w.do("POST", "namespaces/"+namespace+"/maxConsumersPerSubscription", 1)
	w.do("POST", "namespaces/"+namespace+"/maxSubscriptionsPerTopic", 1)
	must(client.CreateProducer(pulsar.ProducerOptions{Topic: topic}))
	_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	w.saw("one producer too many", said(err))
	must(client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s", Type: pulsar.Shared}))
	_, err = client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s", Type: pulsar.Shared})
	w.saw("one consumer too many", said(err))
	_, err = client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "t"})
	w.saw("one subscription too many", said(err))
	full := w.namespace("full")
	w.do("POST", "namespaces/"+full+"/backlogQuota", map[string]any{"limitSize": 1000, "policy": "producer_exception"})
	where := "persistent://" + full + "/t"
	must(client.Subscribe(pulsar.ConsumerOptions{Topic: where, SubscriptionName: "s"})).Close()
	w.fill(where, string(large(1)[:5000]))
	w.saw("a full backlog", until(func() bool {
		producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: where})
		if err == nil {
			producer.Close()
			time.Sleep(time.Second)
			return false
		}
		w.saw("the error", said(err))
		return true
	}))
}

func transactions(w *world) {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: w.url, EnableTransaction: true, OperationTimeout: 5 * time.Second, Logger: logger()})
	w.saw("client", said(err))
	if err != nil {
		return
	}
	defer client.Close()
	transaction, err := client.NewTransaction(time.Minute)
	w.saw("new", said(err))
	if err != nil {
		return
	}
	w.saw("abort", said(transaction.Abort(background)))
}
