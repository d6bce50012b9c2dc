package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

var readerScenarios = []scenario{{"readers", readers}, {"compacted", compacted}, {"table-views", tableViews}}

func (w *world) read(options pulsar.ReaderOptions) []string {
	reader := must(w.client.CreateReader(options))
	defer reader.Close()
	texts := []string{}
	for reader.HasNext() {
		texts = append(texts, string(nextRead(reader).Payload()))
	}
	return texts
}

func readers(w *world) {
	topic := w.topic("t")
	empty := must(w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()}))
	w.saw("empty", empty.HasNext())
	last := must(empty.GetLastMessageID())
	w.saw("last id of an empty topic", []any{last.LedgerID(), last.EntryID(), last.BatchIdx()})
	ids := w.fill(topic, numbered("m", 6)...)
	w.saw("then", empty.HasNext())
	for _, inclusive := range []bool{false, true} {
		for _, start := range []struct {
			name string
			id   pulsar.MessageID
		}{{"earliest", pulsar.EarliestMessageID()}, {"latest", pulsar.LatestMessageID()}, {"the third", ids[2]}, {"the last", ids[5]}} {
			w.saw(fmt.Sprint(start.name, " inclusive ", inclusive), w.read(pulsar.ReaderOptions{Topic: topic, StartMessageID: start.id, StartMessageIDInclusive: inclusive}))
		}
	}
	reader := must(w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID(), Name: "r", SubscriptionRolePrefix: "role"}))
	w.saw("seek", said(reader.Seek(ids[3])))
	w.saw("after it", string(nextRead(reader).Payload()))
	w.saw("seek by time", said(reader.SeekByTime(time.Now().Add(-time.Hour))))
	w.saw("after it", string(nextRead(reader).Payload()))
	w.saw("seek to the end", said(reader.Seek(pulsar.LatestMessageID())))
	w.saw("has next", reader.HasNext())
	found := must(reader.GetLastMessageID())
	w.saw("last id", []bool{found.LedgerID() == ids[5].LedgerID(), found.EntryID() == ids[5].EntryID()})
	named := must(w.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID(), SubscriptionName: "by-name"}))
	w.saw("its subscription", w.subscription(topic, "by-name")["isDurable"])
	named.Close()
	w.saw("gone with it", until(func() bool { return w.subscription(topic, "by-name") == nil }))
	w.saw("without a start", said(func() error { _, err := w.client.CreateReader(pulsar.ReaderOptions{Topic: topic}); return err }()))
	batched := w.topic("batched")
	w.batch(batched, numbered("b", 5)...)
	w.saw("a batch", w.read(pulsar.ReaderOptions{Topic: batched, StartMessageID: pulsar.EarliestMessageID()}))
	w.saw("the last of a batch", w.read(pulsar.ReaderOptions{Topic: batched, StartMessageID: pulsar.LatestMessageID(), StartMessageIDInclusive: true}))
	parts := w.topic("parts")
	w.do("PUT", path(parts)+"/partitions", 3)
	w.fill(parts, numbered("m", 9)...)
	w.saw("partitions", sorted(w.read(pulsar.ReaderOptions{Topic: parts, StartMessageID: pulsar.EarliestMessageID()})))
}

func compacted(w *world) {
	topic := w.topic("t")
	w.consumer(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "there"}).Close()
	producer := w.producer(pulsar.ProducerOptions{Topic: topic})
	for i := range 9 {
		must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i)), Key: fmt.Sprint("k", i%3)}))
	}
	must(producer.Send(background, &pulsar.ProducerMessage{Key: "k1"}))
	must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("no key")}))
	w.do("PUT", path(topic)+"/compaction", nil)
	w.saw("compacted", until(func() bool {
		_, text := w.call("GET", path(topic)+"/compaction", nil)
		return strings.Contains(string(text), `"SUCCESS"`)
	}))
	must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("after"), Key: "k0"}))
	w.saw("reader", w.read(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID(), ReadCompacted: true}))
	w.saw("reader of all", len(w.read(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})))
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, ReadCompacted: true})
	w.saw("consumer", rest(consumer))
	w.saw("seek", said(consumer.Seek(pulsar.EarliestMessageID())))
	w.saw("again", rest(consumer))
}

func tableViews(w *world) {
	topic := w.topic("t")
	w.do("PUT", path(topic)+"/partitions", 2)
	schema := pulsar.NewStringSchema(nil)
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, Schema: schema})
	put := func(key string, value string) {
		must(producer.Send(background, &pulsar.ProducerMessage{Key: key, Value: value}))
	}
	put("a", "1")
	put("b", "2")
	put("a", "3")
	var example *string
	view := must(w.client.CreateTableView(pulsar.TableViewOptions{Topic: topic, Schema: schema, SchemaValueType: reflect.TypeOf(example)}))
	shown := func() map[string]string {
		found := map[string]string{}
		for key, value := range view.Entries() {
			found[key] = *value.(*string)
		}
		return found
	}
	w.saw("at first", shown())
	put("c", "4")
	w.saw("it follows", until(func() bool { return view.ContainsKey("c") }))
	w.saw("size", view.Size()) // IsEmpty waits for itself for ever in this version
	w.do("PUT", path(topic)+"-partition-0/unload", nil)
	w.do("PUT", path(topic)+"-partition-1/unload", nil)
	put("d", "5")
	w.saw("after an unload", until(func() bool { return view.ContainsKey("d") }))
	view.Close()
}
