// The official Go client in a soak: URL TOPIC FOLDER SEED RATE PARTITION STREAM…, a stream being
// name:type:consumers:partitions. Commands on standard input: finish, end. Events go to files, as books.py tells.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	keys    = 16
	window  = 200
	heldMax = 60
	heldFor = 13 * time.Second
	wait    = 200 * time.Millisecond
	// A CLOSE_CONSUMER or CLOSE_PRODUCER that follows the answer to its request at once is lost on this client: it
	// has nobody to tell yet, and what it made then waits for ever. Who hears nothing for so long begins anew.
	silence = 15 * time.Second
)

var (
	finishing, ending        atomic.Bool
	url, topic, folder, seed string
	rate                     float64
	errAnew                  = errors.New("begins anew")
	filesLock                sync.Mutex
	files                    = map[string]*events{}
	// Not small ones: a consumer whose queue is full holds up its connection, and does not see that it is closed.
	queues     = []int{100, 1000}
	background = context.Background()
)

type events struct {
	lock sync.Mutex
	file *bufio.Writer
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	return value
}

func eventsOf(stream string) *events {
	filesLock.Lock()
	defer filesLock.Unlock()
	if files[stream] == nil {
		path := filepath.Join(folder, stream+".events")
		file := must(os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644))
		files[stream] = &events{file: bufio.NewWriter(file)}
	}
	return files[stream]
}

func (e *events) write(format string, values ...any) {
	e.lock.Lock()
	defer e.lock.Unlock()
	fmt.Fprintf(e.file, format+"\n", values...)
}

func (e *events) remark(name string, what any) {
	text := strings.Map(func(each rune) rune {
		if each < ' ' || each > '~' {
			return ' '
		}
		return each
	}, fmt.Sprint(what))
	e.write("# %s %s: %s", time.Now().Format(time.TimeOnly), name, text[:min(len(text), 200)])
}

func flush() {
	filesLock.Lock()
	defer filesLock.Unlock()
	for _, each := range files {
		each.lock.Lock()
		each.file.Flush()
		each.lock.Unlock()
	}
}

func drawing(name string) *rand.Rand {
	hash := fnv.New64a()
	hash.Write([]byte(seed + name))
	return rand.New(rand.NewSource(int64(hash.Sum64())))
}

func place(id pulsar.MessageID) string {
	// A message that is not of a batch: -1, as in the other languages.
	index := id.BatchIdx()
	if id.BatchSize() <= 0 {
		index = -1
	}
	return fmt.Sprintf("%d %d %d", id.LedgerID(), id.EntryID(), index)
}

func connect() (pulsar.Client, error) {
	quiet := log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	return pulsar.NewClient(pulsar.ClientOptions{URL: url, OperationTimeout: 20 * time.Second,
		ConnectionTimeout: 3 * time.Second, Logger: quiet})
}

// insist repeats step until it succeeds or the end has come.
func insist(name string, events *events, step func() error) {
	go func() {
		for !ending.Load() {
			if err := step(); err != nil { // clients return what they like while servers are away
				events.remark(name, err)
				time.Sleep(300 * time.Millisecond)
			} else {
				return
			}
		}
	}()
}

type held struct {
	partition, number int
	id                pulsar.MessageID
	published, since  time.Time
}

func parse(message pulsar.Message) held {
	parts := strings.SplitN(string(message.Payload()), " ", 3)
	return held{must(strconv.Atoi(parts[0])), must(strconv.Atoi(parts[1])), message.ID(), message.PublishTime(), time.Now()}
}

// ------------------------------------------------------------------------------------ publishing

// publisher numbers the messages of a partition; after a failure it sends again, one an entry, what was not confirmed.
type publisher struct {
	partition, number int
	name              string
	events            *events
	random            *rand.Rand
	lock              sync.Mutex
	waiting           []int
	done              map[int]bool
	failed            atomic.Bool
	life              atomic.Int64
}

func (p *publisher) message(number int) *pulsar.ProducerMessage {
	sequence := int64(number)
	text := fmt.Sprintf("%d %d %s", p.partition, number, strings.Repeat(".", number*37%300))
	return &pulsar.ProducerMessage{Payload: []byte(text), Key: fmt.Sprint("k", number%keys), SequenceID: &sequence}
}

func (p *publisher) confirmed(number int, id pulsar.MessageID) {
	where := "-1 -1 -1"
	if id != nil && id.LedgerID() >= 0 {
		where = fmt.Sprintf("%d %d -1", id.LedgerID(), id.EntryID()) // no batches
	}
	p.events.write("A %d %s", number, where)
	p.lock.Lock()
	defer p.lock.Unlock()
	p.done[number] = true
	for len(p.waiting) > 0 && p.done[p.waiting[0]] {
		delete(p.done, p.waiting[0])
		p.waiting = p.waiting[1:]
	}
}

func (p *publisher) run() error {
	client, err := connect()
	if err != nil {
		return err
	}
	defer func() { go client.Close() }()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: fmt.Sprintf("%s-partition-%d", topic, p.partition), Name: p.name, SendTimeout: -1,
		// No batches: this client does not say a batch's last number, so one that is sent again in other parts would be
		// taken for a new one.
		MaxPendingMessages: 2 * window, DisableBatching: true,
	})
	if err != nil {
		return err
	}
	p.failed.Store(false)
	own := p.life.Add(1)
	p.lock.Lock()
	again := append([]int{}, p.waiting...)
	p.lock.Unlock()
	for _, each := range again {
		id, err := producer.Send(background, p.message(each))
		if err != nil {
			return err
		}
		p.confirmed(each, id)
	}
	oldest, since := -1, time.Now()
	for until := 100 + p.random.Intn(500); !ending.Load(); {
		p.lock.Lock()
		full := len(p.waiting) >= window
		if len(p.waiting) == 0 || p.waiting[0] != oldest {
			oldest, since = -1, time.Now()
			if len(p.waiting) > 0 {
				oldest = p.waiting[0]
			}
		}
		p.lock.Unlock()
		if p.failed.Load() || until <= 0 && !finishing.Load() || time.Since(since) > silence {
			return errAnew
		}
		if finishing.Load() || full {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for range 1 + p.random.Intn(9) {
			each := p.number
			p.number++
			until--
			p.lock.Lock()
			p.waiting = append(p.waiting, each)
			p.lock.Unlock()
			p.events.write("S %d", each)
			producer.SendAsync(background, p.message(each), func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				switch {
				case err == nil && (p.life.Load() == own || id != nil && id.LedgerID() >= 0):
					// "Stored before", said to a former life, may be said of a batch that was cut in another way.
					p.confirmed(each, id)
				case err != nil && p.life.Load() == own:
					p.events.remark(p.name, fmt.Sprint(each, " failed: ", err))
					p.failed.Store(true)
				}
			})
		}
		time.Sleep(time.Duration(p.random.Float64() * 10 / rate * float64(time.Second)))
	}
	return nil
}

// ------------------------------------------------------------------------------------- consuming

// taker acknowledges as applications do: at once, late, twice, up to one in the middle, not at all.
type taker struct {
	name, source, subscription string
	kind                       pulsar.SubscriptionType
	inOrder, byIndex           bool
	events                     *events
	random                     *rand.Rand
	held, old                  []held
}

func (t *taker) run() error {
	client, err := connect()
	if err != nil {
		return err
	}
	defer func() { go client.Close() }()
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: t.source, SubscriptionName: t.subscription, Type: t.kind, Name: t.name,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, ReceiverQueueSize: queues[t.random.Intn(2)],
		NackRedeliveryDelay: 300 * time.Millisecond, EnableBatchIndexAcknowledgment: t.byIndex,
		AckWithResponse: t.random.Intn(4) == 0, RetryEnable: false,
	})
	if err != nil {
		return err
	}
	defer func() {
		for _, each := range t.held {
			t.keep(each)
		}
		t.held = nil
		leave(consumer)
	}()
	for heard := time.Now(); !ending.Load(); {
		if time.Since(heard) > silence {
			return errAnew
		}
		limited, cancel := context.WithTimeout(background, wait)
		message, err := consumer.Receive(limited)
		cancel()
		if err == nil {
			heard = time.Now()
			each := parse(message)
			t.events.write("G %d %d %s %s", each.partition, each.number, place(each.id), t.name)
			t.held = append(t.held, each)
			if err := t.act(consumer, each); err != nil {
				return err
			}
		} else if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		for len(t.held) > 0 && (finishing.Load() || len(t.held) > heldMax || time.Since(t.held[0].since) > heldFor) {
			t.acknowledge(consumer, 0)
		}
	}
	return nil
}

// leave closes a consumer, and takes what still comes: with a full queue its connection would not read the answer.
func leave(consumer pulsar.Consumer) {
	limited, closed := context.WithCancel(background)
	go func() {
		for limited.Err() == nil {
			if _, err := consumer.Receive(limited); err != nil {
				return
			}
		}
	}()
	done := make(chan bool)
	go func() { consumer.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
	}
	closed()
}

func (t *taker) keep(each held) {
	t.old = append(t.old, each)
	if len(t.old) > 40 {
		t.old = t.old[1:]
	}
}

func (t *taker) acknowledge(consumer pulsar.Consumer, at int) {
	each := t.held[at]
	t.held = append(t.held[:at:at], t.held[at+1:]...)
	t.keep(each)
	if err := consumer.AckID(each.id); err != nil {
		t.events.remark(t.name, err)
	}
}

func (t *taker) act(consumer pulsar.Consumer, last held) error {
	draw, newest := t.random.Intn(1000), len(t.held)-1
	if finishing.Load() {
		return nil
	}
	switch {
	case draw < 300:
		t.acknowledge(consumer, newest)
	case draw < 360:
		for len(t.held) > 0 {
			t.acknowledge(consumer, 0)
		}
	case draw < 460:
		t.acknowledge(consumer, t.random.Intn(len(t.held)))
	case draw < 480:
		t.held = t.held[:newest]
		consumer.NackID(last.id)
	case draw < 500 && len(t.old) > 0:
		return consumer.AckID(t.old[t.random.Intn(len(t.old))].id)
	case draw < 510:
		return errAnew
	case t.inOrder && draw < 640:
		t.held = nil
		t.keep(last)
		return consumer.AckIDCumulative(last.id)
	case t.inOrder && draw < 780:
		at := t.random.Intn(len(t.held))
		target := t.held[at]
		t.held = t.held[at+1:]
		t.keep(target)
		return consumer.AckIDCumulative(target.id)
	}
	return nil
}

// --------------------------------------------------------------------------------------- reading

func read(partition int, stream string) {
	name := fmt.Sprintf("%s-%d", stream, partition)
	events, random := eventsOf(stream), drawing(name)
	from, next := pulsar.EarliestMessageID(), 0
	insist(name, events, func() error {
		client, err := connect()
		if err != nil {
			return err
		}
		defer func() { go client.Close() }()
		reader, err := client.CreateReader(pulsar.ReaderOptions{Topic: fmt.Sprintf("%s-partition-%d", topic, partition),
			StartMessageID: from, ReceiverQueueSize: queues[random.Intn(2)]})
		if err != nil {
			return err
		}
		events.write("J %d %d", partition, next)
		for heard := time.Now(); !ending.Load(); heard = time.Now() {
			limited, cancel := context.WithTimeout(background, silence)
			message, err := reader.Next(limited)
			cancel()
			if err != nil {
				if time.Since(heard) >= silence {
					return errAnew
				}
				return err
			}
			each := parse(message)
			events.write("G %d %d %s", each.partition, each.number, place(each.id))
			from, next = each.id, each.number+1
			if !finishing.Load() && random.Intn(250) == 0 {
				if random.Intn(3) == 0 {
					from, next = pulsar.EarliestMessageID(), 0
				}
				return errAnew
			}
		}
		return nil
	})
}

// ------------------------------------------------------------------------------------------ main

var kinds = map[string]pulsar.SubscriptionType{
	"Exclusive": pulsar.Exclusive, "Shared": pulsar.Shared, "Failover": pulsar.Failover, "Key_Shared": pulsar.KeyShared}

func main() {
	url, topic, folder, seed = os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	rate = must(strconv.ParseFloat(os.Args[5], 64))
	if partition := must(strconv.Atoi(os.Args[6])); partition >= 0 {
		name := fmt.Sprint("publisher-", partition)
		made := &publisher{partition: partition, name: name, events: eventsOf(name), random: drawing(name), done: map[int]bool{}}
		insist(name, made.events, made.run)
	}
	for _, argument := range os.Args[7:] {
		parts := strings.Split(argument, ":")
		for _, each := range strings.Split(parts[3], ",") {
			if parts[1] == "reader" {
				read(must(strconv.Atoi(each)), parts[0])
				continue
			}
			source := topic
			if each != "" {
				source += "-partition-" + each
			}
			for number := range must(strconv.Atoi(parts[2])) {
				name := fmt.Sprintf("%s-%s-%d", parts[0], each, number)
				inOrder := parts[1] == "Exclusive" || parts[1] == "Failover"
				byIndex := parts[1] == "Shared" || inOrder && strings.Contains("02468", each)
				made := &taker{name: name, source: source, subscription: parts[0], kind: kinds[parts[1]], inOrder: inOrder, byIndex: byIndex,
					events: eventsOf(parts[0]), random: drawing(name)}
				insist(name, made.events, made.run)
			}
		}
	}
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() && lines.Text() != "end" {
			if lines.Text() == "finish" {
				finishing.Store(true)
			}
		}
		ending.Store(true)
	}()
	for !ending.Load() {
		time.Sleep(200 * time.Millisecond)
		flush()
	}
	time.Sleep(time.Second)
	flush()
}
