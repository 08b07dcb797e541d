// From the arguments of a call to a record for the buffer. Pure.
import {
  RequestRefusedError,
  byText,
  bytes,
  checkBy,
  checkCron,
  checkHeaderName,
  checkLate,
  checkLocal,
  checkMoment,
  checkSpan,
  checkTopic,
  checkWindow,
  checkZone,
  momentText,
  named,
  refuseIf,
  spanMs,
  spanText
} from './grammar.js'

/**
 * Makes records for one buffer. A record has topic, key, partition (null: the producer chooses),
 * value, and headers: an array of [name, Buffer or null].
 */
export class Requests {
  #partitions
  #topic
  #prefix

  /** `partitions`: how many the buffer has; fixed for ever. */
  constructor(partitions, topic = 'delayd-buffer') {
    this.#partitions = partitions
    this.#topic = topic
    this.#prefix = /^.+buffer$/s.test(topic) ? topic.slice(0, -'buffer'.length) : 'delayd-'
  }

  /**
   * Schedules a message. `message` has topic, value, one of in (ms or text), at (Date, Unix ms or
   * text) and cron, and any of id, key, headers, partition, receipts, late, window, group, zone,
   * until, catchup.
   */
  schedule(message) {
    return this.#message(undefined, message)
  }

  /** Schedules a message in place of what is pending under its id. */
  replace(message) {
    return this.#message('replace', message)
  }

  /** Schedules a message of which only the last one counts, `max_wait` after the first at the latest. */
  debounce(message) {
    refuseIf(message.in === undefined || message.window !== undefined, 'a debounce has a delay')
    return this.#message('debounce', message)
  }

  /** Cancels what is pending under the id. */
  cancel(id) {
    return this.#about('cancel', id)
  }

  /** Delivers what is pending under the id now. */
  fire(id) {
    return this.#about('fire', id)
  }

  /** Gives what is pending under the id another due time: one of in, at and by. */
  reschedule(id, due) {
    return this.#about('reschedule', id, [when(due, ['in', 'at', 'by'])])
  }

  #about(op, id, more = []) {
    const key = named('id', id)
    const headers = [['delayd-op', bytes(op)], ['delayd-id', key], ...more]
    return this.#record(key, partitionOf(key, this.#partitions), null, headers)
  }

  #record(key, partition, value, headers) {
    return { topic: this.#topic, key, partition, value, headers }
  }

  #message(op, message) {
    checkTopic(message.topic, this.#prefix)
    const headers = [...(message.headers ?? [])].map(([name, value]) => {
      checkHeaderName(name)
      return [name, bytes(value)]
    })
    const add = (name, text) => text !== undefined && headers.push([`delayd-${name}`, bytes(text)])
    add('topic', message.topic)
    headers.push(when(message, ['in', 'at', 'cron']))
    addOptions(message, add)
    const { id, group } = message
    refuseIf((op || group !== undefined) && id === undefined, 'missing-id')
    if (id === undefined) return this.#record(bytes(message.key), null, bytes(message.value), headers)
    const key = named('id', id)
    addKey(bytes(message.key), key, headers)
    add('op', op)
    headers.push(['delayd-id', key])
    return this.#record(key, partitionOf(key, this.#partitions), bytes(message.value), headers)
  }
}

function addOptions(message, add) {
  const { zone, catchup, until, partition, late, window, max_wait: maxWait, group } = message
  refuseIf(message.cron === undefined && (until ?? catchup) !== undefined, 'until, catchup: of cron')
  refuseIf(message.cron !== undefined && window !== undefined, 'a series has no window')
  refuseIf(zone !== undefined && message.in !== undefined, 'a zone goes with a local time')
  if (zone !== undefined) checkZone(zone)
  add('zone', zone)
  refuseIf(!['once', 'all', undefined].includes(catchup), `bad-catchup: ${catchup}`)
  add('catchup', catchup)
  if (until !== undefined) {
    checkMoment('until', momentText(until))
    add('until', momentText(until))
  }
  const isPartition = Number.isInteger(partition) && partition >= 0 && partition < 2 ** 31
  refuseIf(partition !== undefined && !isPartition, `bad-partition: ${partition}`)
  add('partition', partition?.toString())
  add('receipt', message.receipts ? 'yes' : undefined)
  const spans = [
    ['late', late, checkLate],
    ['window', window, checkWindow],
    ['max-wait', maxWait, text => checkSpan('max-wait', text, spanMs(spanText(message.in)))]
  ]
  for (const [name, span, check] of spans) {
    if (span === undefined) continue
    check(spanText(span))
    add(name, spanText(span))
  }
  if (group !== undefined) named('group', group)
  add('group', group)
}

/** The key to deliver, where it is another than the id. */
function addKey(delivered, key, headers) {
  if (delivered === null || delivered.equals(key)) return
  const isText = delivered.length > 0 && Buffer.from(delivered.toString('utf8')).equals(delivered)
  refuseIf(!isText, 'the key to deliver beside an id is UTF-8 and not empty')
  headers.push(['delayd-key', delivered])
}

/** The header that says when. */
function when(arguments_, allowed) {
  const given = allowed.filter(name => arguments_[name] !== undefined)
  if (given.length !== 1) throw new RequestRefusedError(`give exactly one of ${allowed.join(', ')}`)
  const [name] = given
  const said = arguments_[name]
  switch (name) {
    case 'in':
      checkSpan('delay', spanText(said))
      return ['delayd-delay', bytes(spanText(said))]
    case 'by':
      checkBy(byText(said))
      return ['delayd-by', bytes(byText(said))]
    case 'cron':
      checkCron(said)
      return ['delayd-cron', bytes(said)]
    default: {
      const text = momentText(said)
      if (arguments_.zone === undefined) checkMoment('due', text)
      else checkLocal(text)
      return ['delayd-due', bytes(text)]
    }
  }
}

/** Where all requests about an id lie: murmur2, as Java's default partitioner has it. */
export function partitionOf(key, partitions) {
  const M = 0x5bd1e995
  const whole = key.length & ~3
  let h = 0x9747b28c ^ key.length
  for (let i = 0; i < whole; i += 4) {
    const k = Math.imul(key.readInt32LE(i), M)
    h = Math.imul(h, M) ^ Math.imul(k ^ (k >>> 24), M)
  }
  if (key.length > whole) {
    h = Math.imul(h ^ key.readUIntLE(whole, key.length - whole), M)
  }
  h = Math.imul(h ^ (h >>> 13), M)
  return ((h ^ (h >>> 15)) & 0x7fffffff) % partitions
}
