// go-amqp against a started node; amqp10_queues.py says what the environment has. Exits with 0, and says how many
// checks held.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	amqp "github.com/Azure/go-amqp"
)

var ctx, cancel = context.WithTimeout(context.Background(), 50*time.Second)

func must(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Sprintf(format, args...))
	}
}

func none(err error) { must(err == nil, "%v", err) }

func need[T any](value T, err error) T {
	none(err)
	return value
}

func same(what string, got, wanted any) {
	must(reflect.DeepEqual(got, wanted), "%s is %#v, and not %#v", what, got, wanted)
}

func queue(key string) string { return "/queues/" + url.PathEscape(os.Getenv(key)) }

func connect(password string, frame uint32) (*amqp.Conn, error) {
	where := need(url.Parse(os.Getenv("AMQP_URL")))
	if password == "" {
		password, _ = where.User.Password()
	}
	options := &amqp.ConnOptions{SASLType: amqp.SASLTypePlain(where.User.Username(), password), MaxFrameSize: frame}
	return amqp.Dial(ctx, "amqp://"+where.Host, options)
}

func send(s *amqp.Session, target string, messages ...*amqp.Message) {
	sender := need(s.NewSender(ctx, target, nil))
	for _, message := range messages {
		none(sender.Send(ctx, message, nil)) // accepted, or an error
	}
	none(sender.Close(ctx))
}

func receiver(s *amqp.Session, source string, credit int32) *amqp.Receiver {
	return need(s.NewReceiver(ctx, source, &amqp.ReceiverOptions{Credit: credit}))
}

// By drain: the broker gives up the credit when nothing is ready.
func empty(s *amqp.Session, source string) {
	from := receiver(s, source, -1)
	none(from.IssueCredit(10))
	none(from.DrainCredit(ctx, nil))
	must(from.Prefetched() == nil, "%s is not empty", source)
	none(from.Close(ctx))
}

func unsettledAndSettled(s *amqp.Session) {
	sender := need(s.NewSender(ctx, queue("PLAIN"), nil))
	options := &amqp.SenderOptions{SettlementMode: amqp.SenderSettleModeSettled.Ptr()}
	settled := need(s.NewSender(ctx, queue("PLAIN"), options))
	for i := 0; i < 100; i++ {
		none(sender.Send(ctx, amqp.NewMessage([]byte(strconv.Itoa(i))), nil))
	}
	for i := 100; i < 200; i++ {
		none(settled.Send(ctx, amqp.NewMessage([]byte(strconv.Itoa(i))), nil))
	}
	from := receiver(s, queue("PLAIN"), 20)
	for i := 0; i < 200; i++ {
		message := need(from.Receive(ctx, nil))
		same("a body", string(message.GetData()), strconv.Itoa(i))
		none(from.AcceptMessage(ctx, message))
	}
	none(from.Close(ctx))
	empty(s, queue("PLAIN"))
}

func manyInFlight(s *amqp.Session) {
	sender := need(s.NewSender(ctx, queue("PLAIN"), nil))
	var receipts []amqp.SendReceipt
	for i := 0; i < 5000; i++ {
		message := &amqp.Message{Header: &amqp.MessageHeader{Durable: true}, Value: int64(i)}
		receipts = append(receipts, need(sender.SendWithReceipt(ctx, message, nil)))
	}
	for _, receipt := range receipts {
		_, accepted := need(receipt.Wait(ctx)).(*amqp.StateAccepted)
		must(accepted, "not accepted")
	}
	from := need(s.NewReceiver(ctx, queue("PLAIN"), &amqp.ReceiverOptions{
		Credit: 500, SettlementMode: amqp.ReceiverSettleModeFirst.Ptr(),
		RequestedSenderSettleMode: amqp.SenderSettleModeSettled.Ptr(),
	}))
	for i := 0; i < 5000; i++ {
		same("a value", need(from.Receive(ctx, nil)).Value, int64(i))
	}
	none(from.Close(ctx))
	empty(s, queue("PLAIN"))
}

func releaseModifyAccept(s *amqp.Session) {
	send(s, queue("PLAIN"), amqp.NewMessage([]byte("again")))
	from := receiver(s, queue("PLAIN"), 1)
	first := need(from.Receive(ctx, nil))
	must(first.Header.FirstAcquirer && first.Header.DeliveryCount == 0, "the first time")
	none(from.ReleaseMessage(ctx, first))
	second := need(from.Receive(ctx, nil))
	must(!second.Header.FirstAcquirer && second.Header.DeliveryCount == 0, "after release")
	none(from.ModifyMessage(ctx, second, &amqp.ModifyMessageOptions{DeliveryFailed: true}))
	third := need(from.Receive(ctx, nil))
	must(!third.Header.FirstAcquirer && third.Header.DeliveryCount == 1, "after modify")
	none(from.Close(ctx)) // unsettled: it returns
	from = receiver(s, queue("PLAIN"), 1)
	none(from.AcceptMessage(ctx, need(from.Receive(ctx, nil))))
	none(from.Close(ctx))
	empty(s, queue("PLAIN"))
}

func settledByTheSecond(s *amqp.Session) {
	send(s, queue("PLAIN"), amqp.NewMessage([]byte("twice")))
	options := &amqp.ReceiverOptions{SettlementMode: amqp.ReceiverSettleModeSecond.Ptr()}
	from := need(s.NewReceiver(ctx, queue("PLAIN"), options))
	none(from.AcceptMessage(ctx, need(from.Receive(ctx, nil)))) // waits for the broker's disposition
	none(from.Close(ctx))
	empty(s, queue("PLAIN"))
}

func reject(s *amqp.Session) {
	send(s, queue("REJECTING"), amqp.NewMessage([]byte("bad")))
	from := receiver(s, queue("REJECTING"), 1)
	none(from.RejectMessage(ctx, need(from.Receive(ctx, nil)), &amqp.Error{Condition: "app:bad", Description: "no good"}))
	dead := receiver(s, queue("DEAD"), 1)
	message := need(dead.Receive(ctx, nil))
	same("a body", string(message.GetData()), "bad")
	death := message.Annotations["x-opt-deaths"].([]any)[0].(map[string]any)
	same("the queue", death["queue"], os.Getenv("REJECTING"))
	same("the reason", death["reason"], "rejected")
	none(dead.AcceptMessage(ctx, message))
}

func large(s *amqp.Session) {
	small := need(connect("", 2048))
	defer small.Close()
	narrow := need(small.NewSession(ctx, nil))
	body := bytes.Repeat([]byte("clusterbroker "), 75_000)
	send(narrow, queue("PLAIN"), amqp.NewMessage(body))
	for _, session := range []*amqp.Session{narrow, s} {
		from := receiver(session, queue("PLAIN"), 1)
		message := need(from.Receive(ctx, nil))
		must(bytes.Equal(message.GetData(), body), "another body")
		if session == narrow {
			none(from.ReleaseMessage(ctx, message))
		} else {
			none(from.AcceptMessage(ctx, message))
		}
		none(from.Close(ctx))
	}
	empty(s, queue("PLAIN"))
}

func propertiesAndValues(s *amqp.Session) {
	str := func(text string) *string { return &text }
	at, sequence := time.UnixMilli(1700000000500).UTC(), uint32(3)
	sent := &amqp.Message{
		Header: &amqp.MessageHeader{Durable: true, Priority: 9, TTL: time.Minute},
		Properties: &amqp.MessageProperties{
			MessageID: amqp.UUID{1, 2, 3}, UserID: []byte("guest"), To: str(queue("PLAIN")), Subject: str("subject"),
			ReplyTo: str("/queues/answers"), CorrelationID: uint64(1 << 63), ContentType: str("application/x"),
			ContentEncoding: str("none"), CreationTime: &at, GroupID: str("group"), GroupSequence: &sequence,
			ReplyToGroupID: str("other"),
		},
		ApplicationProperties: map[string]any{"text": "ü", "n": int32(-7), "big": int64(1 << 40), "f": 1.5, "yes": true},
		Annotations:           amqp.Annotations{"x-own": "kept"},
		Data:                  [][]byte{[]byte("one"), []byte("two")},
	}
	send(s, queue("PLAIN"), sent)
	from := receiver(s, queue("PLAIN"), 1)
	got := need(from.Receive(ctx, nil))
	none(from.AcceptMessage(ctx, got))
	must(got.Header.TTL > 0 && got.Header.TTL <= time.Minute, "a time to live of %s", got.Header.TTL)
	must(got.Header.Durable && got.Header.Priority == 9, "another header")
	created := got.Properties.CreationTime.UTC()
	got.Properties.CreationTime = &created
	same("properties", got.Properties, sent.Properties)
	same("application properties", got.ApplicationProperties, sent.ApplicationProperties)
	same("annotations", got.Annotations,
		amqp.Annotations{"x-own": "kept", "x-exchange": "", "x-routing-key": os.Getenv("PLAIN")})
	same("data", got.Data, sent.Data)
	for _, value := range []any{"text", int64(5), map[string]any{"a": "b"}, 2.5, true} {
		send(s, queue("PLAIN"), &amqp.Message{Value: value})
		got := need(from.Receive(ctx, nil))
		none(from.AcceptMessage(ctx, got))
		same("a value", got.Value, value)
	}
}

func emptyQueueByTimeOut(s *amqp.Session) {
	from := receiver(s, queue("PLAIN"), 1)
	short, over := context.WithTimeout(ctx, 200*time.Millisecond)
	defer over()
	_, err := from.Receive(short, nil)
	must(errors.Is(err, context.DeadlineExceeded), "%v", err)
}

func exchangesAndNoRoute(s *amqp.Session) {
	sender := need(s.NewSender(ctx, "/exchanges/amq.topic/go.missing", nil))
	receipt := need(sender.SendWithReceipt(ctx, amqp.NewMessage(nil), nil))
	state := need(receipt.Wait(ctx))
	_, released := state.(*amqp.StateReleased)
	must(released, "%v", state)
	anonymous := need(s.NewSender(ctx, "", nil))
	to, missing := queue("PLAIN"), queue("MISSING")
	none(anonymous.Send(ctx, &amqp.Message{Properties: &amqp.MessageProperties{To: &to}, Value: "own"}, nil))
	err := anonymous.Send(ctx, &amqp.Message{Properties: &amqp.MessageProperties{To: &missing}, Value: "own"}, nil)
	must(err != nil, "accepted without a queue")
	from := receiver(s, queue("PLAIN"), 1)
	message := need(from.Receive(ctx, nil))
	same("a value", message.Value, "own")
	none(from.AcceptMessage(ctx, message))
}

func notFound(s *amqp.Session) {
	_, sending := s.NewSender(ctx, queue("MISSING"), nil)
	_, receiving := s.NewReceiver(ctx, queue("MISSING"), nil)
	for _, err := range []error{sending, receiving} {
		var told *amqp.Error
		must(errors.As(err, &told) && told.Condition == amqp.ErrCondNotFound, "%v", err)
		must(strings.Contains(told.Description, os.Getenv("MISSING")), "%v", told)
	}
	empty(s, queue("PLAIN")) // the session goes on
}

func oddName(s *amqp.Session) {
	send(s, queue("ODD"), &amqp.Message{Value: "odd"})
	from := receiver(s, queue("ODD"), 1)
	message := need(from.Receive(ctx, nil))
	same("a value", message.Value, "odd")
	none(from.AcceptMessage(ctx, message))
}

func fromPika(s *amqp.Session) {
	from := receiver(s, queue("FROM_PIKA"), 1)
	message := need(from.Receive(ctx, nil))
	none(from.AcceptMessage(ctx, message))
	same("the body", string(message.GetData()), "from pika")
	must(message.Header.Durable && message.Header.Priority == 7, "another header")
	p := message.Properties
	same("properties", []any{*p.ContentType, p.MessageID, p.CorrelationID, *p.ReplyTo, p.CreationTime.Unix(), *p.GroupID},
		[]any{"text/plain", "m-0", "c-0", "/queues/answers", int64(1700000000), "pika"})
	same("application properties", message.ApplicationProperties,
		map[string]any{"text": "ü", "n": int32(7), "big": int64(1 << 40), "yes": true})
}

func toPika(s *amqp.Session) {
	kind, answers := "application/octet-stream", "/queues/answers"
	send(s, queue("TO_PIKA"), &amqp.Message{
		Header:                &amqp.MessageHeader{Durable: true, Priority: 6},
		Properties:            &amqp.MessageProperties{ContentType: &kind, CorrelationID: "c-1", ReplyTo: &answers},
		ApplicationProperties: map[string]any{"text": "ü", "n": int64(7), "yes": true},
		Data:                  [][]byte{[]byte("to pika")},
	})
}

func main() {
	defer cancel()
	checks := 0
	for _, check := range []func(*amqp.Session){
		unsettledAndSettled, manyInFlight, releaseModifyAccept, settledByTheSecond, reject, large, propertiesAndValues,
		emptyQueueByTimeOut, exchangesAndNoRoute, notFound, oddName, fromPika, toPika,
	} {
		connection := need(connect("", 0))
		check(need(connection.NewSession(ctx, nil)))
		none(connection.Close())
		checks++
	}
	_, err := connect("wrong", 0)
	must(err != nil && strings.Contains(err.Error(), "SASL PLAIN auth failed"), "%v", err)
	checks++
	version := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Deps[0].Version
	}
	fmt.Printf("go-amqp %s: %d checks held\n", version, checks)
}
