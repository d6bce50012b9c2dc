package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// patience is how long anything that must come is waited for; quiet is how long nothing must come.
const (
	patience = 20 * time.Second
	quiet    = 700 * time.Millisecond
)

// world is what a scenario works with. What it saw is printed when it ends.
type world struct {
	name   string
	url    string
	admin  string
	client pulsar.Client
	lock   sync.Mutex
	lines  []line
}

type line struct {
	Scenario string `json:"scenario"`
	Step     string `json:"step"`
	Saw      any    `json:"saw"`
}

// stopped ends a scenario that cannot go on.
type stopped struct{ why string }

func (w *world) saw(step string, value any) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.lines = append(w.lines, line{w.name, step, value})
}

// topic is a name of this scenario's own.
func (w *world) topic(name string) string {
	return "persistent://public/default/" + w.name + "-" + name
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(stopped{said(err)})
	}
	return value
}

func (w *world) producer(options pulsar.ProducerOptions) pulsar.Producer {
	return must(w.client.CreateProducer(options))
}

// consumer starts at the first message if nothing else is said.
func (w *world) consumer(options pulsar.ConsumerOptions) pulsar.Consumer {
	return must(w.client.Subscribe(withDefaults(options)))
}

func withDefaults(options pulsar.ConsumerOptions) pulsar.ConsumerOptions {
	if options.SubscriptionName == "" {
		options.SubscriptionName = "s"
	}
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	return options
}

func (w *world) subscribing(options pulsar.ConsumerOptions) string {
	consumer, err := w.client.Subscribe(withDefaults(options))
	if err == nil {
		consumer.Close()
	}
	return said(err)
}

func (w *world) producing(options pulsar.ProducerOptions) string {
	producer, err := w.client.CreateProducer(options)
	if err == nil {
		producer.Close()
	}
	return said(err)
}

// send sends texts one by one, each as an entry of its own if the producer does not batch.
func send(producer pulsar.Producer, texts ...string) []pulsar.MessageID {
	ids := []pulsar.MessageID{}
	for _, text := range texts {
		ids = append(ids, must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte(text)})))
	}
	return ids
}

func numbered(prefix string, count int) []string {
	texts := []string{}
	for i := range count {
		texts = append(texts, fmt.Sprint(prefix, i))
	}
	return texts
}

// fill sends texts to a topic, unbatched.
func (w *world) fill(topic string, texts ...string) []pulsar.MessageID {
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	defer producer.Close()
	return send(producer, texts...)
}

var background = context.Background()

type receiver interface {
	Receive(context.Context) (pulsar.Message, error)
}

func next(consumer receiver) pulsar.Message {
	return must(within(consumer, patience))
}

func within(consumer receiver, time time.Duration) (pulsar.Message, error) {
	limit, cancel := context.WithTimeout(background, time)
	defer cancel()
	return consumer.Receive(limit)
}

func nextRead(reader pulsar.Reader) pulsar.Message {
	limit, cancel := context.WithTimeout(background, patience)
	defer cancel()
	return must(reader.Next(limit))
}

// take receives and acknowledges count messages.
func take(consumer pulsar.Consumer, count int) []string {
	texts := []string{}
	for range count {
		message := next(consumer)
		texts = append(texts, string(message.Payload()))
		must(0, consumer.Ack(message))
	}
	return texts
}

// rest receives until nothing came for a while.
func rest(consumer receiver) []string {
	texts := []string{}
	for {
		message, err := within(consumer, quiet)
		if err != nil {
			return texts
		}
		texts = append(texts, string(message.Payload()))
	}
}

func sorted(texts []string) []string {
	sort.Strings(texts)
	return texts
}

// until asks again until the answer holds.
func until(holds func() bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if holds() {
			return true
		}
	}
	return false
}

var (
	sentence = regexp.MustCompile(`(?s)(server error: \w+): .*`)
	fetching = regexp.MustCompile(`(?s)(get schema version fail), err: .*`)
	digits   = regexp.MustCompile(`\d+`)
)

// said names an error by its type, its result and the code of the broker; the broker's sentence is its own.
func said(err error) string {
	if err == nil {
		return "ok"
	}
	text := sentence.ReplaceAllString(fetching.ReplaceAllString(err.Error(), "$1"), "$1")
	text = digits.ReplaceAllString(text, "N")
	var coded *pulsar.Error
	if errors.As(err, &coded) {
		return fmt.Sprintf("result %d, %s", coded.Result(), text)
	}
	return text
}

// call is a request of the admin API: the status and the body.
func (w *world) call(method string, path string, body any) (int, []byte) {
	content, contentType := []byte(nil), "application/json"
	if body != nil {
		content = must(json.Marshal(body))
	}
	request := must(http.NewRequest(method, w.admin+"/admin/v2/"+path, bytes.NewReader(content)))
	request.Header.Set("Content-Type", contentType)
	answer := must(http.DefaultClient.Do(request))
	defer answer.Body.Close()
	return answer.StatusCode, must(io.ReadAll(answer.Body))
}

// do is a request that must succeed.
func (w *world) do(method string, path string, body any) {
	status, text := w.call(method, path, body)
	if status >= 300 {
		panic(stopped{fmt.Sprint(method, " ", path, " is answered with ", status, " ", string(text))})
	}
}

// path is that of a topic in the admin API.
func path(topic string) string {
	return strings.Replace(topic, "://", "/", 1)
}

func (w *world) stats(topic string) map[string]any {
	_, text := w.call("GET", path(topic)+"/stats", nil)
	found := map[string]any{}
	must(0, json.Unmarshal(text, &found))
	return found
}

func (w *world) subscription(topic string, name string) map[string]any {
	found, _ := w.stats(topic)["subscriptions"].(map[string]any)[name].(map[string]any)
	return found
}

func (w *world) consumers(topic string, name string) []map[string]any {
	found := []map[string]any{}
	listed, _ := w.subscription(topic, name)["consumers"].([]any)
	for _, one := range listed {
		found = append(found, one.(map[string]any))
	}
	return found
}

// namespace makes one of this scenario's own.
func (w *world) namespace(name string) string {
	full := "public/" + w.name + "-" + name
	w.do("PUT", "namespaces/"+full, map[string]any{"replication_clusters": []string{"local"}})
	return full
}
