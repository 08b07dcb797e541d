// What delayd's grammar of requests refuses, as far as the text alone tells (docs/reference/requests.md).
import { Buffer } from 'node:buffer'

const ID_BYTES_MAX = 256
const DUE_MS_MAX = 253_402_300_799_999 // the end of the year 9999
const LATE_MS_MAX = 365 * 86_400_000
const WINDOW_MS_MAX = 86_400_000

const UNIT_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }
// By how many digits a number of these years has in another unit than milliseconds.
const OTHER_UNITS = { 10: 'seconds', 16: 'microseconds', 19: 'nanoseconds' }
const SPAN = /^([0-9]{1,15})(ms|s|m|h|d)$/
const RFC_3339 =
  /^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})$/
const LOCAL = /^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?$/
const ZONE = /^(?=.{1,64}$)[A-Za-z][A-Za-z0-9_+-]*(\/[A-Za-z0-9_+-]+){0,3}$/
const CRON = /^(?=.{1,128}$)[0-9A-Za-z*,/#-]+( +[0-9A-Za-z*,/#-]+){4,5}$/
const CRON_NAME = /^@(hourly|daily|midnight|weekly|monthly|yearly|annually)$/

/** What delayd would reject, or a call that makes no sense; nothing was sent. */
export class RequestRefusedError extends Error {
  name = 'RequestRefusedError'
}

export function refuseIf(wrong, why) {
  if (wrong) throw new RequestRefusedError(why)
}

/** Bytes as they are, text in UTF-8, null for nothing. */
export function bytes(content) {
  if (content === null || content === undefined) return null
  if (typeof content !== 'string') return Buffer.from(content)
  // A lone surrogate would become U+FFFD, and two ids would be one.
  refuseIf(/[\ud800-\udfff]/u.test(content), 'a text that cannot be encoded as UTF-8')
  return Buffer.from(content, 'utf8')
}

/** An id or the name of a group. */
export function named(what, text) {
  refuseIf(typeof text !== 'string', `bad-${what}: it is no text`)
  const name = bytes(text)
  const fits = name.length >= 1 && name.length <= ID_BYTES_MAX
  refuseIf(!fits, `bad-${what}: it has 1 to ${ID_BYTES_MAX} bytes of UTF-8, not ${name.length}`)
  return name
}

export function checkTopic(topic, prefix) {
  const isName = /^[a-zA-Z0-9._-]{1,249}$/.test(topic) && topic !== '.' && topic !== '..'
  refuseIf(!isName, `bad-topic: ${topic}`)
  refuseIf(topic.startsWith(prefix) || topic.startsWith('__'), `forbidden-topic: ${topic}`)
}

export function checkHeaderName(name) {
  refuseIf(name.startsWith('delayd-'), `the header ${name} is delayd's: its prefix is reserved`)
  refuseIf(name.includes('\0'), 'a header name that contains NUL, where librdkafka would cut it')
  bytes(name)
}

/** Text as it is, a number of milliseconds rounded up, so that nothing is early. */
export function spanText(span) {
  return typeof span === 'string' ? span : `${Math.ceil(span)}ms`
}

export function byText(by) {
  if (typeof by === 'string') return by
  const ms = Math.ceil(by)
  return ms < 0 ? `${ms}ms` : `+${ms + 0}ms` // + 0: of -0.5 this is +0ms
}

/** Text as it is, a Date or a number of Unix milliseconds rounded up. */
export function momentText(moment) {
  return typeof moment === 'string' ? moment : String(Math.ceil(Number(moment)))
}

export function spanMs(text) {
  const found = SPAN.exec(text)
  return found ? Number(found[1]) * UNIT_MS[found[2]] : -1
}

export function checkSpan(name, text, min = 0, max = Infinity) {
  const ms = spanMs(text)
  refuseIf(!(ms >= min && ms <= max), `bad-${name}: ${text} is not an integer and a unit, in bounds`)
}

export const checkLate = text => checkSpan('late', text, 1, LATE_MS_MAX)
export const checkWindow = text => checkSpan('window', text, 1, WINDOW_MS_MAX)

export function checkBy(text) {
  refuseIf(!/^[+-]/.test(text), `bad-by: ${text} has no sign`)
  checkSpan('by', text.slice(1), 0, DUE_MS_MAX)
}

export function checkMoment(name, text) {
  if (!/^[0-9]+$/.test(text)) {
    refuseIf(!RFC_3339.test(text), `bad-${name}: ${text} is neither Unix milliseconds nor RFC 3339`)
    return
  }
  const unit = text.length <= 19 && OTHER_UNITS[text.replace(/^0+/, '').length]
  refuseIf(unit, `bad-${name}: ${text} looks like ${unit}, it is read as milliseconds`)
  refuseIf(text.length > 15 || Number(text) > DUE_MS_MAX, `bad-${name}: ${text} is beyond 9999`)
}

export function checkLocal(text) {
  refuseIf(!LOCAL.test(text), `bad-due: ${text} is not what a clock shows, like 2027-03-28T09:00`)
}

export function checkZone(zone) {
  refuseIf(!ZONE.test(zone), `bad-zone: ${zone} is no IANA name`)
}

export function checkCron(cron) {
  refuseIf(!CRON.test(cron) && !CRON_NAME.test(cron), `bad-cron: ${cron} has not five or six fields`)
}
