// Calls methods of Go's administration library by their names, and prints what each answers.
//
//	go_admin CONFIG            calls come on standard input, one JSON array a line: ["Topics.Create", "t/n/x", 3]
//	go_admin methods           prints the names of all methods, one a line
//
// CONFIG is the library's config.Config as JSON. An answer is one line: {"answer": [...]}, {"code": 404, "reason": "…"}
// for what a broker refused, {"error": "…"} for what failed in the library itself, or {"hung": true}.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

// A call that takes longer has hung; the slowest takes a second or two.
const callTimeout = 30 * time.Second

var errorType = reflect.TypeOf((*error)(nil)).Elem()

// argument makes a value of the wanted type: names of topics and namespaces are read by the library.
func argument(raw json.RawMessage, wanted reflect.Type) (reflect.Value, error) {
	value := reflect.New(wanted)
	switch made := value.Interface().(type) {
	case *utils.TopicName:
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return value, err
		}
		name, err := utils.GetTopicName(text)
		if err != nil {
			return value, err
		}
		*made = *name
	case *utils.NameSpaceName:
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return value, err
		}
		name, err := utils.GetNamespaceName(text)
		if err != nil {
			return value, err
		}
		*made = *name
	case *utils.MessageID:
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return value, err
		}
		switch text {
		case "earliest":
			*made = utils.Earliest
		case "latest":
			*made = utils.Latest
		default:
			id, err := utils.ParseMessageID(text)
			if err != nil {
				return value, err
			}
			*made = *id
		}
	default:
		if err := json.Unmarshal(raw, made); err != nil {
			return value, err
		}
		if err := unwritten(raw, value.Elem()); err != nil {
			return value, err
		}
	}
	return value.Elem(), nil
}

// unwritten fills members that the library keeps out of its JSON (a cluster's name, say) by their Go names.
func unwritten(raw json.RawMessage, value reflect.Value) error {
	if value.Kind() != reflect.Struct {
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return err
	}
	for i := 0; i < value.NumField(); i++ {
		field := value.Type().Field(i)
		if given, ok := members[field.Name]; ok && field.Tag.Get("json") == "-" {
			if err := json.Unmarshal(given, value.Field(i).Addr().Interface()); err != nil {
				return err
			}
		}
	}
	return nil
}

func failed(err error) map[string]any {
	var refused rest.Error
	if errors.As(err, &refused) {
		return map[string]any{"code": refused.Code, "reason": refused.Reason}
	}
	return map[string]any{"error": err.Error()}
}

func call(client admin.Client, words []json.RawMessage) (said map[string]any) {
	defer func() {
		if broken := recover(); broken != nil {
			said = map[string]any{"error": fmt.Sprint("panic: ", broken)}
		}
	}()
	var name string
	if err := json.Unmarshal(words[0], &name); err != nil {
		log.Fatal(err)
	}
	group, method, _ := strings.Cut(name, ".")
	subject := reflect.ValueOf(client).MethodByName(group).Call(nil)[0].Elem()
	bound := subject.MethodByName(method)
	if !bound.IsValid() || bound.Type().NumIn() != len(words)-1 {
		log.Fatalf("%s takes other arguments", name)
	}
	values := make([]reflect.Value, 0, len(words)-1)
	for i, raw := range words[1:] {
		value, err := argument(raw, bound.Type().In(i))
		if err != nil {
			return map[string]any{"error": err.Error()}
		}
		values = append(values, value)
	}
	answer := []any{}
	for _, value := range bound.Call(values) {
		if value.Type() == errorType {
			if !value.IsNil() {
				return failed(value.Interface().(error))
			}
			continue
		}
		answer = append(answer, value.Interface())
	}
	return map[string]any{"answer": answer}
}

func methods() {
	client := reflect.TypeOf((*admin.Client)(nil)).Elem()
	for i := 0; i < client.NumMethod(); i++ {
		group := client.Method(i)
		subject := group.Type.Out(0)
		for j := 0; j < subject.NumMethod(); j++ {
			fmt.Println(group.Name + "." + subject.Method(j).Name)
		}
	}
}

func main() {
	if os.Args[1] == "methods" {
		methods()
		return
	}
	var settings config.Config
	if err := json.Unmarshal([]byte(os.Args[1]), &settings); err != nil {
		log.Fatal(err)
	}
	client, err := admin.New(&settings)
	if err != nil {
		log.Fatal(err)
	}
	// The library prints some errors itself; answers must not be mixed with that.
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	os.Stdout = os.Stderr
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var words []json.RawMessage
		if err := json.Unmarshal(bytes.TrimSpace(lines.Bytes()), &words); err != nil {
			log.Fatal(err)
		}
		done := make(chan map[string]any, 1)
		go func() { done <- call(client, words) }()
		var said map[string]any
		select {
		case said = <-done:
		case <-time.After(callTimeout):
			said = map[string]any{"hung": true}
		}
		if err := answers.Encode(said); err != nil {
			if err := answers.Encode(map[string]any{"error": err.Error()}); err != nil {
				log.Fatal(err)
			}
		}
	}
}
