// What people do with the official Go client, each step checked; prints a line per step that held.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const definition = `{"type":"record","name":"Reading","fields":[{"name":"sensor","type":"string"},{"name":"value","type":"int"}]}`

type reading struct {
	Sensor string `json:"sensor" avro:"sensor"`
	Value  int    `json:"value" avro:"value"`
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func check(holds bool, what string) {
	if !holds {
		log.Fatal("does not hold: ", what)
	}
	fmt.Println("HELD", what)
}

func next(consumer pulsar.Consumer) pulsar.Message {
	limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return must(consumer.Receive(limit))
}

func main() {
	options := pulsar.ClientOptions{URL: os.Args[1]}
	if len(os.Args) > 2 { // over TLS: the file of the certificates that are trusted, and that of a token
		options.TLSTrustCertsFilePath = os.Args[2]
		options.Authentication = pulsar.NewAuthenticationTokenFromFile(os.Args[3])
	}
	client := must(pulsar.NewClient(options))
	defer client.Close()
	background := context.Background()
	codecs := map[string]pulsar.CompressionType{"none": pulsar.NoCompression, "LZ4": pulsar.LZ4, "ZLIB": pulsar.ZLib, "ZSTD": pulsar.ZSTD}
	number := 0
	for name, codec := range codecs {
		producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: "go", CompressionType: codec, BatchingMaxPublishDelay: 2 * time.Millisecond}))
		failed := make(chan error, 50)
		for range 50 {
			message := &pulsar.ProducerMessage{
				Payload: []byte(fmt.Sprint("m", number)), Key: fmt.Sprint("k", number%7), Properties: map[string]string{"codec": name}}
			producer.SendAsync(background, message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { failed <- err })
			number++
		}
		for range 50 {
			must(0, <-failed)
		}
		producer.Close()
	}
	types := []pulsar.SubscriptionType{pulsar.Exclusive, pulsar.Shared, pulsar.Failover, pulsar.KeyShared}
	for place, kind := range types {
		options := pulsar.ConsumerOptions{Topic: "go", SubscriptionName: fmt.Sprint("s", place), Type: kind,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest}
		consumer := must(client.Subscribe(options))
		var first pulsar.MessageID
		seen := map[string]bool{}
		for len(seen) < number {
			message := next(consumer)
			if first == nil {
				first = message.ID()
			}
			seen[string(message.Payload())] = true
			must(0, consumer.Ack(message))
		}
		check(len(seen) == number, fmt.Sprint("subscription type ", place, " delivers everything"))
		must(0, consumer.Seek(first))
		check(next(consumer).Payload() != nil, "and again after a seek to an id")
		must(0, consumer.SeekByTime(time.Now().Add(-time.Hour)))
		check(string(next(consumer).Payload()) != "", "and after a seek by time")
		consumer.Close()
	}
	reader := must(client.CreateReader(pulsar.ReaderOptions{Topic: "go", StartMessageID: pulsar.EarliestMessageID()}))
	read := 0
	for reader.HasNext() {
		must(reader.Next(background))
		read++
	}
	check(read == number, "a reader reads every codec to the end")
	for name, schema := range map[string]pulsar.Schema{
		"Avro": pulsar.NewAvroSchema(definition, nil), "JSON": pulsar.NewJSONSchema(definition, nil)} {
		producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: "go-" + name, Schema: schema}))
		must(producer.Send(background, &pulsar.ProducerMessage{Value: &reading{"a", 7}}))
		consumer := must(client.Subscribe(pulsar.ConsumerOptions{Topic: "go-" + name, SubscriptionName: "s", Schema: schema,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest}))
		var found reading
		must(0, next(consumer).GetSchemaValue(&found))
		check(found == reading{"a", 7}, "schema "+name)
		_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: "go-" + name, Schema: pulsar.NewInt64Schema(nil)})
		check(err != nil, "an incompatible schema is refused on "+name)
	}
	check(len(must(client.TopicPartitions("go-parts"))) == 3, "three partitions")
	parted := must(client.CreateProducer(pulsar.ProducerOptions{Topic: "go-parts"}))
	for i := range 60 {
		must(parted.Send(background, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i)), Key: fmt.Sprint("k", i%7)}))
	}
	parts := must(client.Subscribe(pulsar.ConsumerOptions{Topic: "go-parts", SubscriptionName: "s", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest}))
	for range 60 {
		must(0, parts.Ack(next(parts)))
	}
	check(true, "all partitions are consumed")
	chunksOnShared(client)
	fmt.Println("END")
}

// chunksOnShared has two consumers that share messages of three chunks; one leaves with what it has, the other gives some back.
func chunksOnShared(client pulsar.Client) {
	const count = 40
	shared := pulsar.ConsumerOptions{Topic: "go-shared", SubscriptionName: "s", Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond}
	hasLittleRoom := shared
	hasLittleRoom.ReceiverQueueSize = 4 // not a whole number of messages
	leaving := must(client.Subscribe(hasLittleRoom))
	staying := must(client.Subscribe(shared))
	producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: "go-shared", DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 10_000}))
	large := func(number int) []byte { return bytes.Repeat([]byte{byte(number)}, 25_000+number) }
	for number := range count {
		message := &pulsar.ProducerMessage{Payload: large(number), Properties: map[string]string{"number": strconv.Itoa(number)}}
		producer.SendAsync(context.Background(), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { must(0, err) })
	}
	next(leaving)
	leaving.Close()
	seen, acknowledged := map[int]bool{}, map[int]bool{}
	for len(acknowledged) < count {
		message := next(staying)
		number := must(strconv.Atoi(message.Properties()["number"]))
		// The client gives chunks back one by one, and seldom in two commands: such a message may come twice.
		if !bytes.Equal(message.Payload(), large(number)) || acknowledged[number] && number%5 != 0 {
			log.Fatal("message ", number, ", ", len(message.Payload()), " bytes")
		}
		if number%5 == 0 && !seen[number] {
			staying.Nack(message)
		} else {
			must(0, staying.Ack(message))
			acknowledged[number] = true
		}
		seen[number] = true
	}
	staying.Close()
	last := must(client.Subscribe(shared))
	limit, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := last.Receive(limit)
	check(err != nil, "each message in chunks comes to one of two consumers until it is acknowledged")
	last.Close()
}
