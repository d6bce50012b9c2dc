package main

import (
	"encoding/json"
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

var schemaScenarios = []scenario{{"schemas", schemas}, {"schema-versions", schemaVersions}}

const (
	oneField  = `{"type":"record","name":"Reading","fields":[{"name":"sensor","type":"string"}]}`
	twoFields = `{"type":"record","name":"Reading","fields":[{"name":"sensor","type":"string"},{"name":"value","type":["null","int"],"default":null}]}`
	unlike    = `{"type":"record","name":"Reading","fields":[{"name":"sensor","type":"long"}]}`
)

type small struct {
	Sensor string `json:"sensor" avro:"sensor"`
}

type wide struct {
	Sensor string `json:"sensor" avro:"sensor"`
	Value  *int   `json:"value" avro:"value"`
}

// registered is what the admin API tells of a topic's newest schema.
func (w *world) registered(topic string) any {
	_, text := w.call("GET", "schemas/public/default/"+topic[len("persistent://public/default/"):]+"/schema", nil)
	found := map[string]any{}
	must(0, json.Unmarshal(text, &found))
	return []any{found["version"], found["type"], found["data"], found["properties"]}
}

func schemas(w *world) {
	cases := []struct {
		name   string
		schema pulsar.Schema
		value  any
		into   any
	}{
		{"string", pulsar.NewStringSchema(map[string]string{"p": "v"}), "ü", new(*string)},
		{"bytes", pulsar.NewBytesSchema(nil), []byte("x"), new([]byte)},
		{"int8", pulsar.NewInt8Schema(nil), int8(-7), new(int8)},
		{"int16", pulsar.NewInt16Schema(nil), int16(-7), new(int16)},
		{"int32", pulsar.NewInt32Schema(nil), int32(-7), new(int32)},
		{"int64", pulsar.NewInt64Schema(nil), int64(-7), new(int64)},
		{"float", pulsar.NewFloatSchema(nil), float32(1.5), new(float32)},
		{"double", pulsar.NewDoubleSchema(nil), float64(1.5), new(float64)},
		{"json", pulsar.NewJSONSchema(oneField, map[string]string{"p": "v"}), small{"a"}, new(small)},
		{"avro", pulsar.NewAvroSchema(oneField, nil), small{"a"}, new(small)},
		{"native", pulsar.NewProtoNativeSchemaWithMessage(&wrapperspb.StringValue{}, nil), wrapperspb.String("a"), &wrapperspb.StringValue{}},
		{"proto", pulsar.NewProtoSchema(oneField, nil), wrapperspb.String("a"), &wrapperspb.StringValue{}},
	}
	for _, one := range cases {
		topic := w.topic(one.name)
		producer, err := w.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: one.schema})
		w.saw("producer "+one.name, said(err))
		if err != nil {
			continue
		}
		must(producer.Send(background, &pulsar.ProducerMessage{Value: one.value}))
		consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Schema: one.schema})
		message := next(consumer)
		w.saw("value", []any{said(message.GetSchemaValue(one.into)), fmt.Sprintf("%x", message.Payload())})
		w.saw("version", fmt.Sprintf("%x", message.SchemaVersion()))
		w.saw("registered", w.registered(topic))
		w.saw("a consumer with another", w.subscribing(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "other", Schema: pulsar.NewAvroSchema(unlike, nil)}))
		w.saw("a producer with another", w.producing(pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewAvroSchema(unlike, nil)}))
		w.saw("a producer without", w.producing(pulsar.ProducerOptions{Topic: topic}))
		w.saw("a consumer without", w.subscribing(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "other"}))
	}
}

func schemaVersions(w *world) {
	topic := w.topic("t")
	old, wider := pulsar.NewAvroSchema(oneField, nil), pulsar.NewAvroSchema(twoFields, nil)
	producer := w.producer(pulsar.ProducerOptions{Topic: topic, Schema: old})
	must(producer.Send(background, &pulsar.ProducerMessage{Value: small{"a"}}))
	_, err := producer.Send(background, &pulsar.ProducerMessage{Value: wide{"b", nil}, Schema: wider})
	w.saw("with a schema of its own", said(err))
	_, err = producer.Send(background, &pulsar.ProducerMessage{Value: struct {
		Sensor int64 `avro:"sensor"`
	}{1}, Schema: pulsar.NewAvroSchema(unlike, nil)})
	w.saw("with one that does not fit", said(err))
	must(producer.Send(background, &pulsar.ProducerMessage{Value: small{"c"}}))
	consumer := w.consumer(pulsar.ConsumerOptions{Topic: topic, Schema: wider})
	for range 3 {
		message := next(consumer)
		var found wide
		w.saw("read", []any{said(message.GetSchemaValue(&found)), found.Sensor, fmt.Sprintf("%x", message.SchemaVersion())})
	}
	w.saw("registered", w.registered(topic))
	fixed := w.producer(pulsar.ProducerOptions{Topic: topic, Schema: wider, DisableMultiSchema: true})
	_, err = fixed.Send(background, &pulsar.ProducerMessage{Value: small{"d"}, Schema: old})
	w.saw("where messages have none of their own", said(err))
	namespace := w.namespace("closed")
	w.do("POST", "namespaces/"+namespace+"/isAllowAutoUpdateSchema", false)
	guarded := "persistent://" + namespace + "/t"
	w.saw("the first where schemas are closed", w.producing(pulsar.ProducerOptions{Topic: guarded, Schema: old}))
	w.saw("the next", w.producing(pulsar.ProducerOptions{Topic: guarded, Schema: wider}))
	w.do("POST", "namespaces/"+namespace+"/schemaValidationEnforced", true)
	w.saw("none where one is demanded", w.producing(pulsar.ProducerOptions{Topic: guarded}))
}
