// Finds the receipt that answers a request among the records of delayd-receipts. Pure.

const EARLY_MAX = 100 // receipts that are kept until the source is known
// Verdicts of later receipts with the same source: what became of the message.
const LATER = new Set(['delivered', 'dead', 'expired', 'ended'])
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/**
 * One wait for the verdict on one request. Read delayd-receipts from their end, with read_committed,
 * and begin before the request is sent.
 */
export class Wait {
  #id
  #source
  #early = []
  #answer = null

  /** `id`: of the request; null if it has none and asked for receipts. */
  constructor(id) {
    this.#id = id
  }

  /** Tells where Kafka has the request: its source, "partition/offset". */
  acknowledged(source) {
    this.#source = source
    this.#early.forEach(verdict => this.#take(verdict))
    this.#early = []
  }

  /** Takes a record of delayd-receipts; what is no answer to this request changes nothing. */
  read(key, value) {
    if (key === null || (this.#id !== null && this.#id !== key.toString('utf8'))) return
    const verdict = verdictOf(value)
    if (verdict === null || (this.#id === null && verdict.source !== key.toString('utf8'))) return
    if (this.#source !== undefined) this.#take(verdict)
    else if (this.#early.push(verdict) > EARLY_MAX) this.#early.shift()
  }

  /** The verdict, or null while there is none. */
  get answer() {
    return this.#answer
  }

  #take(verdict) {
    if (verdict.source === this.#source) this.#answer ??= verdict
  }
}

/** Reads the value of a receipt; null if no delayd has written it, or it is a later one. */
function verdictOf(value) {
  let fields
  try {
    fields = JSON.parse(utf8.decode(value ?? Buffer.alloc(0)))
  } catch {
    return null
  }
  if (typeof fields !== 'object' || fields === null) return null
  const { verdict, killed, due_ms: dueMs, at_ms: atMs, detail, source } = fields
  const { old_due_ms: oldDueMs = null } = fields
  const isReceipt =
    typeof verdict === 'string' &&
    typeof source === 'string' &&
    Array.isArray(killed) &&
    killed.every(each => typeof each === 'string') &&
    (dueMs === null || Number.isSafeInteger(dueMs)) &&
    (oldDueMs === null || Number.isSafeInteger(oldDueMs)) &&
    Number.isSafeInteger(atMs) &&
    (detail === null || typeof detail === 'string')
  if (!isReceipt || LATER.has(verdict)) return null
  return { verdict, killed, dueMs, atMs, detail: detail ?? '', source, oldDueMs }
}
