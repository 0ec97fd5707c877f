// Books ten units with node-postgres and completes its window in the same transaction.
// It finds its database by the usual PGHOST, PGDATABASE, PGUSER, …
// Exit codes: 0 done, now or before; 75 run me again; 1 a mistake of this program.
'use strict'

const { setTimeout: pause } = require('node:timers/promises')
const { Client, DatabaseError } = require('pg')

const RETRY = 75
const TRIES = 5

// What the guard tells its worker: three arguments of each call.
const { ONCEGUARD_JOB_NAME: job, ONCEGUARD_WINDOW_START: start, ONCEGUARD_EXECUTION_ID: execution } = process.env

async function main() {
  for (let n = 1; n <= TRIES; n++) {
    try {
      await once()
      return 0
    } catch (error) {
      // The SQLSTATE is the code of an error of the server's; a socket's has one like EPIPE.
      const state = error instanceof DatabaseError ? error.code : ''
      console.error(`credit: ${state} ${error.message}`)
      if (error instanceof TypeError || error instanceof ReferenceError) return 1 // a mistake of this program
      if (state === 'OG002') return 0 // done already
      if (state === '40001' || state === '40P01') await pause(Math.random() * 100 * n) // the whole transaction again
      else if (state === 'OG001' || state === 'OG004') return RETRY // the right to this window is gone: stop
      else if (state === '' || state.startsWith('08') || state.startsWith('57')) return RETRY // the connection
      else return 1
    }
  }
  return RETRY
}

// The business of this window.
async function book(client) {
  await client.query(`UPDATE balance SET units = units + 10 WHERE account = 'daily-credit'`)
  await client.query(`INSERT INTO booking (account, window_start, units) VALUES ('daily-credit', $1::timestamptz, 10)`, [start])
}

// One transaction on a connection of its own; whatever fails, closing it rolls back.
// Out of a Pool take one client by pool.connect(): pool.query() may use another
// connection for each statement.
async function once() {
  const client = await connect()
  try {
    await client.query('BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE')
    await client.query('SELECT onceguard.begin($1, $2::timestamptz, $3::uuid)', [job, start, execution])
    await book(client)
    await client.query('SELECT onceguard.complete($1, $2::timestamptz, $3::uuid)', [job, start, execution])
    try {
      await client.query('COMMIT')
    } catch (error) {
      if (!(await done())) throw error
    }
  } finally {
    await client.end().catch(() => {})
  }
}

// What became of a COMMIT that gave an error. Only true is an answer: the server may
// still be at it.
async function done() {
  let client
  try {
    client = await connect()
    const { rows } = await client.query(
      `SELECT coalesce(status = 'completed' AND execution_id = $3::uuid, false) AS mine FROM onceguard.stored($1, $2::timestamptz)`,
      [job, start, execution],
    )
    return rows[0].mine
  } catch {
    return false
  } finally {
    await client?.end().catch(() => {})
  }
}

async function connect() {
  const client = new Client({ connectionTimeoutMillis: 10000 })
  client.on('error', () => {}) // a connection that breaks while idle; the next query says so
  await client.connect()
  return client
}

main().then(
  (code) => process.exit(code),
  (error) => {
    console.error(error)
    process.exit(1)
  },
)
