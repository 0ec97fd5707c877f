// A worker that catches an error within a savepoint and commits all the same.
'use strict'
const { Client } = require('pg')
const { ONCEGUARD_JOB_NAME: job, ONCEGUARD_WINDOW_START: start, ONCEGUARD_EXECUTION_ID: execution } = process.env

async function main() {
  const client = new Client()
  await client.connect()
  await client.query('BEGIN')
  await client.query('SELECT onceguard.begin($1, $2::timestamptz, $3::uuid)', [job, start, execution])
  await client.query('UPDATE balance SET units = units + 10')
  await client.query('SAVEPOINT s')
  try {
    await client.query(`SELECT onceguard.complete($1, '2000-01-01'::timestamptz, $2::uuid)`, [job, execution])
  } catch {
    await client.query('ROLLBACK TO SAVEPOINT s')
  }
  await client.query('COMMIT')
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error.code, error.message)
    process.exit(1)
  },
)
