// Schedules, replaces, cancels and reads reminders with headers alone. Arguments: any ids.
import { randomInt, randomUUID } from 'node:crypto'
import {
  Consumer,
  FetchIsolationLevels,
  Producer,
  compatibilityPartitioner,
  stringDeserializers,
  stringSerializers
} from '@platformatic/kafka'

const bootstrapBrokers = [process.env.DELAYD_BOOTSTRAP ?? 'localhost:9092']
const prefix = process.env.DELAYD_PREFIX ?? 'delayd-' // of delayd's own topics
const target = process.env.TARGET ?? 'reminders'
const patience = 30_000

const buffer = new Producer({
  clientId: 'reminders',
  bootstrapBrokers,
  serializers: stringSerializers,
  // Puts a key where delayd looks for it. This client's default partitioner does not!
  partitioner: (message, key) => (key ? compatibilityPartitioner(message, key) : randomInt(2 ** 31))
})

// Writes one request and returns its source, "partition/offset", by which delayd names it.
async function send(headers, value, key) {
  const message = { topic: prefix + 'buffer', key, value, headers }
  const { offsets } = await buffer.send({ messages: [message], acks: -1 })
  return `${offsets[0].partition}/${offsets[0].offset}`
}

// Standing at the end before the first request is sent, a reader cannot miss its answer.
async function readerAtTheEndOf(topic) {
  const reader = new Consumer({
    groupId: randomUUID(),
    clientId: 'reminders',
    bootstrapBrokers,
    deserializers: stringDeserializers,
    isolationLevel: FetchIsolationLevels.READ_COMMITTED
  })
  const ends = await reader.listOffsets({ topics: [topic] })
  const offsets = ends.get(topic).map((offset, partition) => ({ topic, partition, offset }))
  const stream = await reader.consume({ topics: [topic], mode: 'manual', offsets })
  return { records: stream[Symbol.asyncIterator](), close: () => reader.close(true) }
}

// The first record that names this request as its source.
async function answer(reader, source) {
  const giveUp = setTimeout(() => {
    console.error('no answer yet, so the outcome is unknown: ask again')
    process.exit(1)
  }, patience)
  for (;;) {
    const { value: record } = await reader.records.next()
    if (record.headers.get('delayd-source') === source) {
      clearTimeout(giveUp)
      return record
    }
  }
}

const ids = process.argv.slice(2)
const receipts = await readerAtTheEndOf(prefix + 'receipts')
const reminders = await readerAtTheEndOf(target)

for (const id of ids) { // with an id, which is the key too: can be cancelled
  const headers = { 'delayd-topic': target, 'delayd-id': id, 'delayd-delay': '1h' }
  console.log('scheduled', await send(headers, `pay ${id}`, id))
}

const soon = new Date(Date.now() + 1500).toISOString() // without one: fire and forget
const due = await send({ 'delayd-topic': target, 'delayd-due': soon }, 'drink water')
console.log('scheduled', due)

for (const id of ids) {
  const later = { 'delayd-topic': target, 'delayd-id': id, 'delayd-delay': '2h' }
  const replace = await send({ 'delayd-op': 'replace', ...later }, `pay ${id} now`, id)
  console.log('receipt', (await answer(receipts, replace)).value)
  const cancel = await send({ 'delayd-op': 'cancel', 'delayd-id': id }, undefined, id)
  console.log('receipt', (await answer(receipts, cancel)).value)
}

const reminder = await answer(reminders, due)
console.log('delivered', reminder.value)
for (const [name, value] of reminder.headers) console.log(`  ${name}: ${value}`)

await Promise.all([buffer.close(), receipts.close(), reminders.close()])
