import jakarta.jms.BytesMessage;
import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.InvalidSelectorException;
import jakarta.jms.JMSException;
import jakarta.jms.JMSSecurityException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import java.net.URI;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.util.MetaDataSupport;

/**
 * Qpid JMS against a started node; amqp10_queues.py says what the environment has. Exits with 0, and says how many
 * checks held.
 */
public final class Client {
  private static final long TIMEOUT_MS = 20_000;
  private static final URI BROKER = URI.create(System.getenv("AMQP_URL"));
  private static int checks = 0;

  private interface Check {
    void run(Connection connection, Session session) throws Exception;
  }

  private static void check(String name, int mode, Check check) throws Exception {
    try (Connection connection = connect(null, "")) {
      check.run(connection, connection.createSession(mode));
      checks++;
    } catch (Throwable error) {
      throw new AssertionError("Qpid JMS: " + name, error);
    }
  }

  private static Connection connect(String password, String options) throws JMSException {
    String[] known = BROKER.getUserInfo().split(":");
    String uri = "amqp://" + BROKER.getHost() + ":" + BROKER.getPort() + "?amqp.saslMechanisms=PLAIN" + options;
    JmsConnectionFactory factory = new JmsConnectionFactory(known[0], password == null ? known[1] : password, uri);
    Connection connection = factory.createConnection();
    connection.start();
    return connection;
  }

  private static String address(String key) {
    return "/queues/" + URLEncoder.encode(System.getenv(key), StandardCharsets.UTF_8).replace("+", "%20");
  }

  private static MessageProducer producer(Session session, String key) throws JMSException {
    return session.createProducer(session.createQueue(address(key)));
  }

  private static MessageConsumer consumer(Session session, String key) throws JMSException {
    return session.createConsumer(session.createQueue(address(key)));
  }

  private static Message receive(MessageConsumer consumer) throws JMSException {
    Message message = consumer.receive(TIMEOUT_MS);
    must(message != null, "no message came");
    return message;
  }

  private static String text(Message message) throws JMSException {
    return ((TextMessage) message).getText();
  }

  /** receiveNoWait drains the link: the broker gives up the credit when nothing is ready. */
  private static void empty(Session session, String key) throws JMSException {
    try (MessageConsumer consumer = consumer(session, key)) {
      must(consumer.receiveNoWait() == null, key + " is not empty");
    }
  }

  private static void must(boolean held, String what) {
    if (!held) {
      throw new AssertionError(what);
    }
  }

  private static void same(Object got, Object wanted) {
    must(wanted.equals(got), got + " and not " + wanted);
  }

  private static BytesMessage bytes(Session session, byte[] body) throws JMSException {
    BytesMessage message = session.createBytesMessage();
    message.writeBytes(body);
    return message;
  }

  private static byte[] bytes(Message message) throws JMSException {
    byte[] body = new byte[(int) ((BytesMessage) message).getBodyLength()];
    ((BytesMessage) message).readBytes(body);
    return body;
  }

  private static void manyInFlight(Connection connection, Session session) throws Exception {
    int count = 3000;
    CountDownLatch accepted = new CountDownLatch(count);
    AtomicReference<Exception> failed = new AtomicReference<>();
    CompletionListener listener = new CompletionListener() {
      @Override
      public void onCompletion(Message message) {
        accepted.countDown();
      }

      @Override
      public void onException(Message message, Exception error) {
        failed.set(error);
        accepted.countDown();
      }
    };
    MessageProducer producer = producer(session, "PLAIN");
    for (int n = 0; n < count; n++) {
      producer.send(session.createTextMessage(Integer.toString(n)), listener);
    }
    must(accepted.await(TIMEOUT_MS, TimeUnit.MILLISECONDS), accepted.getCount() + " messages without an outcome");
    must(failed.get() == null, "not accepted: " + failed.get());
    MessageConsumer consumer = consumer(session, "PLAIN"); // 1,000 are prefetched
    for (int n = 0; n < count; n++) {
      same(text(receive(consumer)), Integer.toString(n));
    }
    consumer.close();
    empty(session, "PLAIN");
  }

  /** Persistent messages are unsettled and waited for; the URI's option sends settled those that are not. */
  private static void settled(Connection connection, Session session) throws Exception {
    try (Connection other = connect(null, "&jms.presettlePolicy.presettleAll=true")) {
      Session presettled = other.createSession(Session.AUTO_ACKNOWLEDGE);
      MessageProducer producer = producer(presettled, "PLAIN");
      for (int n = 0; n < 100; n++) {
        producer.send(presettled.createTextMessage(Integer.toString(n)));
      }
      MessageConsumer consumer = consumer(presettled, "PLAIN");
      for (int n = 0; n < 100; n++) {
        same(text(receive(consumer)), Integer.toString(n));
      }
    }
    empty(session, "PLAIN");
  }

  private static void acknowledge(Connection connection, Session session) throws Exception {
    MessageProducer producer = producer(session, "PLAIN");
    for (int n = 0; n < 5; n++) {
      producer.send(session.createTextMessage(Integer.toString(n)));
    }
    MessageConsumer consumer = consumer(session, "PLAIN");
    same(text(receive(consumer)), "0");
    same(text(receive(consumer)), "1");
    session.recover(); // both come again, as delivered before
    for (int n = 0; n < 3; n++) {
      Message message = receive(consumer);
      same(text(message), Integer.toString(n));
      same(message.getJMSRedelivered(), n < 2);
      same(message.getIntProperty("JMSXDeliveryCount"), n < 2 ? 2 : 1);
      if (n == 2) {
        message.acknowledge(); // those before it as well
      }
    }
    session.close(); // two were prefetched and not acknowledged
    Session after = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
    consumer = consumer(after, "PLAIN");
    same(text(receive(consumer)), "3");
    Message last = receive(consumer);
    same(text(last), "4");
    last.acknowledge();
    consumer.close();
    empty(after, "PLAIN");
  }

  /** After two redeliveries the client rejects a message by itself: a dead letter. */
  private static void reject(Connection connection, Session session) throws Exception {
    String policy = "&jms.redeliveryPolicy.maxRedeliveries=2&jms.redeliveryPolicy.outcome=REJECTED";
    try (Connection other = connect(null, policy)) {
      Session strict = other.createSession(Session.CLIENT_ACKNOWLEDGE);
      producer(strict, "REJECTING").send(strict.createTextMessage("bad"));
      MessageConsumer consumer = consumer(strict, "REJECTING");
      for (int n = 0; n < 3; n++) {
        same(text(receive(consumer)), "bad");
        strict.recover();
      }
      must(consumer.receive(200) == null, "a fourth delivery");
      Message dead = receive(consumer(session, "DEAD"));
      same(text(dead), "bad");
      dead.acknowledge();
    }
  }

  private static void large(Connection connection, Session session) throws Exception {
    byte[] body = new byte[1_000_000];
    new Random(7).nextBytes(body);
    try (Connection small = connect(null, "&amqp.maxFrameSize=4096")) {
      Session narrow = small.createSession(Session.CLIENT_ACKNOWLEDGE);
      producer(narrow, "PLAIN").send(bytes(narrow, body));
      must(Arrays.equals(bytes(receive(consumer(narrow, "PLAIN"))), body), "another body");
    } // not acknowledged: it comes again
    must(Arrays.equals(bytes(receive(consumer(session, "PLAIN"))), body), "another body");
  }

  private static void propertiesAndBodies(Connection connection, Session session) throws Exception {
    MessageProducer producer = producer(session, "PLAIN");
    MessageConsumer consumer = consumer(session, "PLAIN");
    TextMessage sent = session.createTextMessage("ü");
    sent.setJMSCorrelationID("c-1");
    sent.setJMSReplyTo(session.createQueue("/queues/answers"));
    sent.setJMSType("kind");
    sent.setStringProperty("text", "ü");
    sent.setIntProperty("n", -7);
    sent.setLongProperty("big", 1L << 40);
    sent.setDoubleProperty("f", 1.5);
    sent.setBooleanProperty("yes", true);
    sent.setStringProperty("JMSXGroupID", "group");
    sent.setIntProperty("JMSXGroupSeq", 3);
    producer.send(sent, DeliveryMode.PERSISTENT, 9, 60_000);
    Message got = receive(consumer);
    same(text(got), "ü");
    same(got.getJMSMessageID(), sent.getJMSMessageID());
    same(got.getJMSCorrelationID(), "c-1");
    same(got.getJMSReplyTo(), sent.getJMSReplyTo());
    same(got.getJMSDestination(), sent.getJMSDestination());
    same(got.getJMSType(), "kind");
    same(got.getJMSTimestamp(), sent.getJMSTimestamp());
    same(got.getJMSExpiration(), sent.getJMSExpiration());
    same(got.getJMSPriority(), 9);
    same(got.getJMSDeliveryMode(), DeliveryMode.PERSISTENT);
    for (Object name : Collections.list(sent.getPropertyNames())) {
      same(got.getObjectProperty((String) name), sent.getObjectProperty((String) name));
    }
    producer.send(session.createMessage());
    receive(consumer);
    MapMessage map = session.createMapMessage();
    map.setString("text", "ü");
    map.setBytes("bytes", new byte[] {1, 2});
    producer.send(map, DeliveryMode.NON_PERSISTENT, 4, 0);
    MapMessage gotMap = (MapMessage) receive(consumer);
    same(gotMap.getString("text"), "ü");
    must(Arrays.equals(gotMap.getBytes("bytes"), new byte[] {1, 2}), "another map");
    same(gotMap.getJMSDeliveryMode(), DeliveryMode.NON_PERSISTENT);
    StreamMessage stream = session.createStreamMessage();
    stream.writeLong(5);
    stream.writeString("a");
    producer.send(stream);
    StreamMessage gotStream = (StreamMessage) receive(consumer);
    same(gotStream.readLong(), 5L);
    same(gotStream.readString(), "a");
    ObjectMessage object = session.createObjectMessage(Integer.valueOf(7));
    producer.send(object);
    same(((ObjectMessage) receive(consumer)).getObject(), 7);
  }

  private static void selectors(Connection connection, Session session) throws Exception {
    MessageProducer producer = producer(session, "PLAIN");
    for (int n = 0; n < 6; n++) {
      TextMessage message = session.createTextMessage(Integer.toString(n));
      message.setIntProperty("n", n);
      message.setStringProperty("color", n % 2 == 0 ? "red" : "blue");
      message.setJMSType("kind" + n);
      producer.send(message, DeliveryMode.PERSISTENT, n, 0);
    }
    String selector = "color = 'red' AND JMSPriority >= 2 AND JMSType LIKE 'kind_' AND JMSDeliveryMode = 'PERSISTENT'";
    MessageConsumer red = session.createConsumer(session.createQueue(address("PLAIN")), selector);
    same(text(receive(red)), "2");
    same(text(receive(red)), "4");
    must(red.receiveNoWait() == null, "what the selector does not take");
    red.close();
    for (String wanted : new String[] {"0", "1", "3", "5"}) {
      MessageConsumer one = session.createConsumer(session.createQueue(address("PLAIN")), "n = " + wanted);
      same(text(receive(one)), wanted);
      one.close();
    }
    try {
      session.createConsumer(session.createQueue(address("PLAIN")), "properties are = nothing");
      throw new AssertionError("a selector that is none");
    } catch (InvalidSelectorException error) {
      // the client reads it first
    }
    empty(session, "PLAIN");
  }

  private static void browser(Connection connection, Session session) throws Exception {
    MessageProducer producer = producer(session, "PLAIN");
    for (int n = 0; n < 5; n++) {
      TextMessage message = session.createTextMessage(Integer.toString(n));
      message.setIntProperty("n", n);
      producer.send(message);
    }
    for (int round = 0; round < 2; round++) {
      try (QueueBrowser browser = session.createBrowser(session.createQueue(address("PLAIN")))) {
        int n = 0;
        for (Object message : Collections.list(browser.getEnumeration())) {
          same(text((Message) message), Integer.toString(n++));
        }
        same(n, 5);
      }
    }
    try (QueueBrowser browser = session.createBrowser(session.createQueue(address("PLAIN")), "n > 3")) {
      same(Collections.list(browser.getEnumeration()).size(), 1);
    }
    MessageConsumer consumer = consumer(session, "PLAIN");
    for (int n = 0; n < 5; n++) {
      Message message = receive(consumer);
      same(text(message), Integer.toString(n));
      must(!message.getJMSRedelivered(), "a browser has taken it");
    }
    consumer.close();
    empty(session, "PLAIN");
  }

  private static void emptyQueue(Connection connection, Session session) throws Exception {
    MessageConsumer consumer = consumer(session, "PLAIN");
    must(consumer.receive(200) == null, "a message of an empty queue");
    must(consumer.receiveNoWait() == null, "a message of an empty queue");
    producer(session, "PLAIN").send(session.createTextMessage("later"));
    same(text(receive(consumer)), "later"); // the link has credit again
  }

  private static void anonymous(Connection connection, Session session) throws Exception {
    MessageProducer producer = session.createProducer(null);
    producer.send(session.createQueue(address("PLAIN")), session.createTextMessage("anonymous"));
    producer.send(session.createQueue(address("ODD")), session.createTextMessage("odd"));
    same(text(receive(consumer(session, "PLAIN"))), "anonymous");
    same(text(receive(consumer(session, "ODD"))), "odd");
    try {
      producer.send(session.createQueue(address("MISSING")), session.createTextMessage("x"));
      throw new AssertionError("accepted without a queue");
    } catch (JMSException error) {
      must(error.getMessage().contains(System.getenv("MISSING")), error.getMessage());
    }
  }

  private static void notFound(Connection connection, Session session) throws Exception {
    for (boolean sends : new boolean[] {true, false}) {
      try {
        if (sends) {
          producer(session, "MISSING");
        } else {
          consumer(session, "MISSING");
        }
        throw new AssertionError("a link to a queue that is not there");
      } catch (InvalidDestinationException error) {
        must(error.getMessage().contains("amqp:not-found"), error.getMessage());
      }
    }
    empty(session, "PLAIN"); // the session goes on
  }

  private static void oddName(Connection connection, Session session) throws Exception {
    producer(session, "ODD").send(session.createTextMessage("odd"));
    same(text(receive(consumer(session, "ODD"))), "odd");
  }

  private static void fromPika(Connection connection, Session session) throws Exception {
    Message message = receive(consumer(session, "FROM_PIKA"));
    same(text(message), "from pika"); // by its content-type
    same(message.getJMSDeliveryMode(), DeliveryMode.PERSISTENT);
    same(message.getJMSPriority(), 7);
    same(message.getJMSCorrelationID(), "c-0");
    same(message.getJMSTimestamp(), 1_700_000_000_000L);
    same(message.getStringProperty("text"), "ü");
    same(message.getIntProperty("n"), 7);
    same(message.getLongProperty("big"), 1L << 40);
    same(message.getBooleanProperty("yes"), true);
  }

  private static void toPika(Connection connection, Session session) throws Exception {
    BytesMessage message = bytes(session, "to pika".getBytes(StandardCharsets.UTF_8));
    message.setJMSCorrelationID("c-1");
    message.setJMSReplyTo(session.createQueue("/queues/answers"));
    message.setStringProperty("text", "ü");
    message.setIntProperty("n", 7);
    message.setBooleanProperty("yes", true);
    producer(session, "TO_PIKA").send(message, DeliveryMode.PERSISTENT, 6, 0);
  }

  public static void main(String[] arguments) throws Exception {
    int auto = Session.AUTO_ACKNOWLEDGE;
    check("many in flight", auto, Client::manyInFlight);
    check("settled", auto, Client::settled);
    check("acknowledge and recover", Session.CLIENT_ACKNOWLEDGE, Client::acknowledge);
    check("reject", Session.CLIENT_ACKNOWLEDGE, Client::reject);
    check("large", auto, Client::large);
    check("properties and bodies", auto, Client::propertiesAndBodies);
    check("selectors", auto, Client::selectors);
    check("queue browser", auto, Client::browser);
    check("empty queue", auto, Client::emptyQueue);
    check("anonymous producer", auto, Client::anonymous);
    check("not found", auto, Client::notFound);
    check("odd name", auto, Client::oddName);
    check("from pika", auto, Client::fromPika);
    check("to pika", auto, Client::toPika);
    try {
      connect("wrong", "").close();
      throw new AssertionError("signed in with a wrong password");
    } catch (JMSSecurityException error) {
      checks++;
    }
    System.out.println("Qpid JMS " + MetaDataSupport.PROVIDER_VERSION + ": " + checks + " checks held");
    System.exit(0);
  }
}
