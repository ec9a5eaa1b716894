import jakarta.jms.Connection;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.net.URI;
import java.util.Enumeration;
import java.util.UUID;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.util.MetaDataSupport;

/** Qpid JMS against a started node: topics, subscriptions and temporary destinations. Exits with 0. */
public final class Topics {
  private static final long TIMEOUT_MS = 20_000;
  private static final long QUIET_MS = 300;
  private static final URI BROKER = URI.create(System.getenv("AMQP_URL"));
  private static int checks = 0;

  private interface Check {
    void run() throws Exception;
  }

  private static void check(String name, Check check) {
    try {
      check.run();
      checks++;
    } catch (Throwable error) {
      throw new AssertionError("Qpid JMS: " + name, error);
    }
  }

  /** A started connection; `container` null: without a client ID. */
  private static Connection connect(String container) throws JMSException {
    String[] known = BROKER.getUserInfo().split(":");
    String uri = "amqp://" + BROKER.getHost() + ":" + BROKER.getPort() + "?amqp.saslMechanisms=PLAIN";
    Connection connection = new JmsConnectionFactory(known[0], known[1], uri).createConnection();
    if (container != null) {
      connection.setClientID(container);
    }
    connection.start();
    return connection;
  }

  private static Session session(Connection connection) throws JMSException {
    return connection.createSession(Session.AUTO_ACKNOWLEDGE);
  }

  private static String unique(String what) {
    return what + "-" + UUID.randomUUID();
  }

  private static void must(boolean held, String what) {
    if (!held) {
      throw new AssertionError(what);
    }
  }

  private static void next(MessageConsumer consumer, String wanted) throws JMSException {
    Message message = consumer.receive(TIMEOUT_MS);
    must(message != null, "no message came, but " + wanted + " was sent");
    String got = ((TextMessage) message).getText();
    must(got.equals(wanted), got + " and not " + wanted);
  }

  private static void nothing(MessageConsumer consumer) throws JMSException {
    must(consumer.receive(QUIET_MS) == null, "a message that is not for it");
  }

  private static void publish(Session session, Topic topic, String text) throws JMSException {
    try (MessageProducer producer = session.createProducer(topic)) {
      producer.send(session.createTextMessage(text));
    }
  }

  private static void subscribers() throws Exception {
    try (Connection connection = connect(null)) {
      Session session = session(connection);
      Topic topic = session.createTopic(unique("news"));
      MessageConsumer one = session.createConsumer(topic);
      MessageConsumer two = session.createConsumer(topic);
      publish(session, topic, "to both");
      session.createProducer(null).send(topic, session.createTextMessage("by an anonymous producer"));
      for (MessageConsumer consumer : new MessageConsumer[] {one, two}) {
        next(consumer, "to both");
        next(consumer, "by an anonymous producer");
        nothing(consumer);
      }
    }
  }

  private static void durable() throws Exception {
    String container = unique("client");
    String name = unique("news");
    try (Connection connection = connect(container)) {
      Session session = session(connection);
      session.createDurableConsumer(session.createTopic(name), "sub").close();
    }
    try (Connection connection = connect(null)) {
      Session session = session(connection);
      publish(session, session.createTopic(name), "while it was away");
    }
    try (Connection connection = connect(container)) {
      Session session = session(connection);
      Topic topic = session.createTopic(name);
      MessageConsumer consumer = session.createDurableConsumer(topic, "sub");
      next(consumer, "while it was away");
      consumer.close();
      publish(session, topic, "kept");
      session.unsubscribe("sub");
      consumer = session.createDurableConsumer(topic, "sub");
      nothing(consumer); // it is another one
      publish(session, topic, "new");
      next(consumer, "new");
      consumer.close();
      Topic other = session.createTopic(name + ".other");
      publish(session, topic, "for the old topic");
      consumer = session.createDurableConsumer(other, "sub"); // another topic: another subscription
      nothing(consumer);
      publish(session, other, "for the other topic");
      next(consumer, "for the other topic");
      consumer.close();
      session.unsubscribe("sub");
      try {
        session.unsubscribe("sub");
        throw new AssertionError("unsubscribed what is not there");
      } catch (InvalidDestinationException error) {
        must(error.getMessage() != null, "no reason");
      }
    }
  }

  private static void shared(String container, boolean durable) throws Exception {
    String name = unique("sub");
    try (Connection first = connect(container); Connection publisher = connect(null)) {
      Session one = session(first);
      Topic topic = one.createTopic(unique("news"));
      MessageConsumer[] consumers = {consumer(one, topic, name, durable), consumer(session(first), topic, name, durable)};
      Session session = session(publisher);
      for (int n = 0; n < 10; n++) {
        publish(session, topic, Integer.toString(n));
      }
      int count = 0;
      for (int n = 0; n < 200 && count < 10; n++) {
        Message message = consumers[n % 2].receive(50);
        count += message == null ? 0 : 1;
      }
      must(count == 10, count + " of 10 messages came");
      for (MessageConsumer consumer : consumers) {
        nothing(consumer);
        consumer.close();
      }
      publish(session, topic, "while they were away");
      MessageConsumer again = consumer(one, topic, name, durable);
      if (durable) {
        next(again, "while they were away");
      } else {
        nothing(again);
      }
      again.close();
      if (durable) {
        one.unsubscribe(name);
        MessageConsumer another = consumer(one, topic, name, true);
        nothing(another);
        another.close();
        one.unsubscribe(name);
      }
    }
  }

  private static MessageConsumer consumer(Session session, Topic topic, String name, boolean durable)
      throws JMSException {
    return durable ? session.createSharedDurableConsumer(topic, name) : session.createSharedConsumer(topic, name);
  }

  private static void selectors() throws Exception {
    try (Connection connection = connect(unique("client"))) {
      Session session = session(connection);
      Topic topic = session.createTopic(unique("news"));
      MessageConsumer red = session.createConsumer(topic, "colour = 'red'");
      MessageConsumer blue = session.createDurableConsumer(topic, "blue", "colour = 'blue' AND n > 1", false);
      MessageProducer producer = session.createProducer(topic);
      for (int n = 0; n < 3; n++) {
        for (String colour : new String[] {"red", "blue"}) {
          TextMessage message = session.createTextMessage(colour + n);
          message.setStringProperty("colour", colour);
          message.setIntProperty("n", n);
          producer.send(message);
        }
      }
      for (int n = 0; n < 3; n++) {
        next(red, "red" + n);
      }
      next(blue, "blue2");
      nothing(red);
      nothing(blue);
      blue.close();
      session.unsubscribe("blue");
    }
  }

  private static void keptBySelector() throws Exception {
    String container = unique("client");
    try (Connection connection = connect(container)) {
      Session session = session(connection);
      Topic topic = session.createTopic(unique("news"));
      session.createDurableConsumer(topic, "red", "colour = 'red'", false).close();
      MessageProducer producer = session.createProducer(topic);
      for (String colour : new String[] {"red", "blue", "green", "red"}) {
        TextMessage message = session.createTextMessage(colour);
        message.setStringProperty("colour", colour);
        producer.send(message);
      }
      int kept = 0;
      try (QueueBrowser browser = session.createBrowser(session.createQueue(container + "|red"))) {
        for (Enumeration<?> each = browser.getEnumeration(); each.hasMoreElements(); kept++) {
          must(((TextMessage) each.nextElement()).getText().equals("red"), "it keeps what it does not select");
        }
      }
      must(kept == 2, kept + " messages are kept, not 2");
      session.unsubscribe("red");
    }
  }

  private static void noLocal() throws Exception {
    String container = unique("client");
    Topic topic;
    try (Connection one = connect(container); Connection two = connect(null)) {
      Session own = session(one);
      Session other = session(two);
      topic = own.createTopic(unique("news"));
      MessageConsumer others = own.createConsumer(topic, null, true);
      MessageConsumer every = own.createConsumer(topic);
      MessageConsumer selected = own.createConsumer(topic, "JMSPriority > 4", true);
      own.createDurableConsumer(topic, "mine", null, true).close();
      publish(own, topic, "own");
      publish(other, topic, "other");
      next(others, "other");
      next(every, "own");
      next(every, "other");
      nothing(others);
      nothing(selected);
    }
    try (Connection again = connect(container)) {
      Session session = session(again);
      publish(session, topic, "own again");
      MessageConsumer mine = session.createDurableConsumer(topic, "mine", null, true);
      next(mine, "other");
      nothing(mine);
      mine.close();
      session.unsubscribe("mine");
    }
  }

  private static void temporaryQueue() throws Exception {
    try (Connection one = connect(null); Connection two = connect(null)) {
      Session here = session(one);
      Session there = session(two);
      TemporaryQueue queue = here.createTemporaryQueue();
      MessageConsumer consumer = here.createConsumer(queue);
      there.createProducer(there.createQueue(queue.getQueueName())).send(there.createTextMessage("x"));
      next(consumer, "x");
      consumer.close();
      queue.delete();
      try {
        there.createProducer(there.createQueue(queue.getQueueName()));
        throw new AssertionError("the queue is still there");
      } catch (InvalidDestinationException error) {
        must(error.getMessage().contains("amqp:not-found"), error.getMessage());
      }
    }
  }

  private static void temporaryTopic() throws Exception {
    try (Connection connection = connect(null)) {
      Session session = session(connection);
      TemporaryTopic topic = session.createTemporaryTopic();
      MessageConsumer one = session.createConsumer(topic);
      MessageConsumer two = session.createConsumer(topic);
      publish(session, topic, "x");
      next(one, "x");
      next(two, "x");
      one.close();
      two.close();
      topic.delete();
    }
  }

  private static void requestAndReply() throws Exception {
    try (Connection asking = connect(null); Connection answering = connect(null)) {
      Session session = session(asking);
      Session service = session(answering);
      Topic topic = session.createTopic(unique("requests"));
      MessageConsumer requests = service.createConsumer(service.createTopic(topic.getTopicName()));
      TemporaryQueue answers = session.createTemporaryQueue();
      TemporaryTopic toAll = session.createTemporaryTopic();
      MessageConsumer answer = session.createConsumer(answers);
      MessageConsumer answerToAll = session.createConsumer(toAll);
      for (jakarta.jms.Destination destination : new jakarta.jms.Destination[] {answers, toAll}) {
        TextMessage request = session.createTextMessage("question");
        request.setJMSReplyTo(destination);
        session.createProducer(topic).send(request);
        Message got = requests.receive(TIMEOUT_MS);
        must(got != null && got.getJMSReplyTo() != null, "a request without a reply-to");
        service.createProducer(null).send(got.getJMSReplyTo(), service.createTextMessage("answer"));
      }
      next(answer, "answer");
      next(answerToAll, "answer");
    }
  }

  public static void main(String[] arguments) {
    check("subscribers", Topics::subscribers);
    check("durable", Topics::durable);
    check("shared", () -> shared(unique("client"), false));
    check("shared, global", () -> shared(null, false));
    check("shared durable", () -> shared(unique("client"), true));
    check("shared durable, global", () -> shared(null, true));
    check("selectors", Topics::selectors);
    check("kept by a selector", Topics::keptBySelector);
    check("no local", Topics::noLocal);
    check("temporary queue", Topics::temporaryQueue);
    check("temporary topic", Topics::temporaryTopic);
    check("request and reply", Topics::requestAndReply);
    System.out.println("Qpid JMS " + MetaDataSupport.PROVIDER_VERSION + ": " + checks + " checks held");
    System.exit(0);
  }
}
