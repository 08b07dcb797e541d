// Runs clients/conformance/cases.json, which Python, Java and Go run as well.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { RequestRefusedError, Requests, Wait } from './delayd.js'

const cases = JSON.parse(readFileSync(new URL('../conformance/cases.json', import.meta.url), 'utf8'))
const SPANS = ['in', 'late', 'window', 'max_wait', 'by']

const text = said => (said?.unencodable ? '\ud800' : said)
const content = said => {
  if (said === null || said === undefined) return null
  return said.hex === undefined ? text(said) : Buffer.from(said.hex, 'hex')
}
const buffer = said => {
  const found = content(said)
  return typeof found === 'string' ? Buffer.from(found, 'utf8') : found
}

function said(bytes) {
  if (bytes === null) return null
  const asText = bytes.toString('utf8')
  return Buffer.from(asText, 'utf8').equals(bytes) ? asText : { hex: bytes.toString('hex') }
}

function argument(name, value) {
  if (name === 'headers') return value.map(([header, held]) => [header, content(held)])
  if (value?.us !== undefined) return value.us / 1000
  if (['at', 'until'].includes(name) && typeof value === 'number') return new Date(value)
  return SPANS.includes(name) ? value : content(value)
}

function recordOf({ op, arguments: given, partitions }) {
  const { buffer: topic, ...rest } = given
  const requests = new Requests(partitions, topic)
  const entries = Object.entries(rest).map(([name, value]) => [name, argument(name, value)])
  const { id, ...more } = Object.fromEntries(entries)
  if (op === 'cancel' || op === 'fire') return requests[op](id)
  if (op === 'reschedule') return requests.reschedule(id, more)
  return requests[op](id === undefined ? more : { id, ...more })
}

for (const each of cases.requests) {
  test(each.name, () => {
    if (each.refused) {
      assert.throws(() => recordOf(each), RequestRefusedError)
      return
    }
    const record = recordOf(each)
    const made = {
      topic: record.topic,
      key: said(record.key),
      partition: record.partition,
      value: said(record.value),
      headers: record.headers.map(([name, value]) => [name, said(value)])
    }
    assert.deepEqual(made, each.record)
  })
}

for (const each of cases.receipts) {
  test(each.name, () => {
    const wait = new Wait(each.request.id)
    for (let i = 0; i <= each.receipts.length; i++) {
      if (i === each.acknowledged_after) wait.acknowledged(each.request.source)
      if (i < each.receipts.length) {
        wait.read(buffer(each.receipts[i].key), buffer(each.receipts[i].value))
      }
    }
    const { answer } = wait
    const made = answer && {
      verdict: answer.verdict,
      killed: answer.killed,
      due_ms: answer.dueMs,
      at_ms: answer.atMs,
      detail: answer.detail,
      source: answer.source,
      old_due_ms: answer.oldDueMs
    }
    assert.deepEqual(made, each.verdict)
  })
}
