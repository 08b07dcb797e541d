// The records that ask delayd for something, and its receipts. Sends nothing: for any client of Kafka.
export { RequestRefusedError } from './grammar.js'
export { Requests, partitionOf } from './requests.js'
export { Wait } from './receipts.js'
