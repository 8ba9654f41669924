//! The console's commands for batches and their tests.

use crate::command::{CommandOutput, NodeFilter, NodeState, QueryFilter, TestRequest};
use crate::ops::{ALL_STATES, Result, check_name, error_message, failures};
use crate::state::{Test, server_concurrency, servers_of};
use crate::text;
use crate::transact::{CALL_TIMEOUT, NodeReply};
use crate::{Inner, TestKind};
use lst::{Bulk, PAGE, write_destinations};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use wire::{
    Errno, LST_FEAT_BULK_LEN, LstBid, Nid, SRPC_BATCH_OPC_QUERY, SRPC_BATCH_OPC_RUN, SRPC_BATCH_OPC_STOP,
    SRPC_SERVICE_BRW, SRPC_SERVICE_PING, SrpcBatchReqst, SrpcBody, SrpcTestReqst, TestBulkReq, TestBulkReqV1,
    WireStruct,
};

/// The longest time to wait until a batch has stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(90);
/// Interval between two queries whether a batch has stopped.
const STOP_POLL: Duration = Duration::from_millis(200);

/// The batch states in `lst list_batch`.
const IDLE: u32 = 0xb0;
const RUNNING: u32 = 0xb1;

/// The state of a batch or test on its nodes.
struct BatchStatus {
    replies: Vec<NodeReply>,
    /// Number of nodes that run a test.
    running: usize,
    /// Number of nodes without active tests in their reply; includes replies with an error.
    idle: usize,
    /// Number of nodes that replied with an error.
    failed: usize,
    /// Number of nodes that did not reply.
    silent: usize,
}

/// The message for an errno about the batch `name`.
fn batch_error_message(name: &str) -> impl Fn(Errno) -> String + '_ {
    move |e| error_message(&format!("batch {name}"), e)
}

/// The number of active tests (or of units, for one test) in a node's reply.
fn active_count(node: &NodeReply) -> Option<u32> {
    match &node.reply.as_ref().ok()?.body {
        SrpcBody::BatchReply(reply) => Some(reply.bar_active),
        _ => None,
    }
}

impl Inner {
    pub(super) fn add_batch(&self, name: &str) -> Result<CommandOutput> {
        check_name(name)?;
        self.state
            .lock()
            .add_batch(name)
            .map_err(batch_error_message(name))?;
        Ok(CommandOutput::success(""))
    }

    fn batch_request(&self, id: u64, bar_opc: u32, bar_testidx: u32, bar_arg: u32) -> SrpcBody {
        let batch = SrpcBatchReqst {
            bar_sid: self.sid(),
            bar_bid: LstBid { bat_id: id },
            bar_opc,
            bar_testidx,
            bar_arg,
            ..SrpcBatchReqst::default()
        };
        batch.into()
    }

    pub(super) async fn run(&self, name: &str, timeout_s: u32) -> Result<CommandOutput> {
        let (id, clients) = {
            let state = self.state.lock();
            let batch = state.batch(name).map_err(batch_error_message(name))?;
            if let Some(&nid) = batch
                .clients
                .iter()
                .find(|&&nid| state.state_of(nid) != NodeState::Active)
            {
                return Err(format!(
                    "batch {name} cannot start: {} is not in the session",
                    text::process_id(nid)
                ));
            }
            (batch.id, batch.clients.clone())
        };
        let run = self.batch_request(id, SRPC_BATCH_OPC_RUN, 0, timeout_s);
        let replies = self
            .call_nodes(clients.into_iter().map(|nid| (nid, run.clone())), CALL_TIMEOUT)
            .await;
        if replies.iter().any(|r| r.status() == Ok(0)) {
            self.state
                .lock()
                .batch_mut(name)
                .map_err(batch_error_message(name))?
                .running = true;
        }
        match failures("run batch", &replies, &[]) {
            failed if failed.is_empty() => Ok(CommandOutput::success(format!("{name} is running now\n"))),
            failed => Ok(CommandOutput::failure(failed.trim_end())),
        }
    }

    pub(super) async fn stop(&self, name: &str, force: bool) -> Result<CommandOutput> {
        let (id, clients) = {
            let state = self.state.lock();
            let batch = state.batch(name).map_err(batch_error_message(name))?;
            let active = |nid: &Nid| state.state_of(*nid) == NodeState::Active;
            (
                batch.id,
                batch.clients.iter().copied().filter(active).collect::<Vec<_>>(),
            )
        };
        let stop = self.batch_request(id, SRPC_BATCH_OPC_STOP, 0, force.into());
        let replies = self
            .call_nodes(clients.into_iter().map(|nid| (nid, stop.clone())), CALL_TIMEOUT)
            .await;
        match failures("stop batch", &replies, &[Errno::EPERM.0 as u32]) {
            failed if failed.is_empty() => Ok(CommandOutput::success("")),
            failed => Ok(CommandOutput::failure(failed.trim_end())),
        }
    }

    /// Waits at most [`STOP_TIMEOUT`] until no client reports an active test of the batch or an
    /// error. Clients that do not reply do not count.
    pub(super) async fn wait_until_stopped(&self, name: &str, mut output: CommandOutput) -> CommandOutput {
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            let batch_status = {
                let _guard = self.command_lock.lock().await;
                self.query_batch(name, 0, false, CALL_TIMEOUT).await
            };
            let batch_status = match batch_status {
                Ok(batch_status) => batch_status,
                Err(e) => return CommandOutput::failure(e),
            };
            if batch_status.running == 0 && batch_status.failed == 0 {
                output.out += "Batch is stopped\n";
                return output;
            }
            if Instant::now() > deadline {
                let running = batch_status.running;
                return CommandOutput::failure(format!(
                    "batch {name} still runs on {running} nodes after {STOP_TIMEOUT:?}: stop it with --force"
                ));
            }
            sleep(STOP_POLL).await;
        }
    }

    /// Queries the clients, or the servers, of a batch or a test.
    async fn query_batch(&self, name: &str, test: u32, server: bool, limit: Duration) -> Result<BatchStatus> {
        let (id, nids) = {
            let state = self.state.lock();
            let batch = state.batch(name).map_err(batch_error_message(name))?;
            let nids = match (test as usize, server) {
                (0, false) => batch.clients.clone(),
                (0, true) => batch.servers.clone(),
                (n, server) => {
                    let test = batch
                        .tests
                        .get(n - 1)
                        .ok_or_else(|| error_message(&format!("test {n} of batch {name}"), Errno::ENOENT))?;
                    let group = if server { &test.to } else { &test.from };
                    state
                        .group(group)
                        .map_err(batch_error_message(name))?
                        .nids
                        .clone()
                }
            };
            (batch.id, nids)
        };
        let query = self.batch_request(id, SRPC_BATCH_OPC_QUERY, test, 0);
        let replies = self
            .call_nodes(nids.into_iter().map(|nid| (nid, query.clone())), limit)
            .await;
        let running = replies
            .iter()
            .filter(|r| active_count(r).is_some_and(|n| n > 0))
            .count();
        let batch_status = BatchStatus {
            running,
            idle: replies.iter().filter(|r| active_count(r) == Some(0)).count(),
            failed: replies
                .iter()
                .filter(|r| r.status().is_ok_and(|s| s != 0))
                .count(),
            silent: replies.iter().filter(|r| r.status().is_err()).count(),
            replies,
        };
        if test == 0 && !server && batch_status.running == 0 && batch_status.silent == 0 {
            self.state
                .lock()
                .batch_mut(name)
                .map_err(batch_error_message(name))?
                .running = false;
        }
        Ok(batch_status)
    }

    pub(super) async fn query(
        &self,
        name: &str,
        test: u32,
        server: bool,
        timeout_s: u64,
        verbose: Option<QueryFilter>,
    ) -> Result<CommandOutput> {
        let batch_status = self
            .query_batch(name, test, server, Duration::from_secs(timeout_s))
            .await?;
        let BatchStatus {
            running,
            idle,
            failed,
            silent,
            ..
        } = batch_status;
        if let Some(filter) = verbose {
            if batch_status.replies.is_empty() {
                return Ok(CommandOutput::success("there are no nodes\n"));
            }
            let line = |r: &NodeReply| {
                let is_running = active_count(r).is_some_and(|n| n > 0);
                let failed = r.status() != Ok(0);
                if (filter.active && !is_running) || (filter.idle && is_running) || (filter.error && !failed)
                {
                    return None;
                }
                let activity = match r.status() {
                    Err(e) => e.to_string(),
                    Ok(_) if is_running => "Running".to_owned(),
                    Ok(_) => "Idle".to_owned(),
                };
                Some(format!(
                    "{} [{}]: {activity}\n",
                    text::process_id(r.nid),
                    r.state.name()
                ))
            };
            return Ok(CommandOutput::success(
                batch_status.replies.iter().filter_map(line).collect::<String>(),
            ));
        }
        let mut out = format!("{name} [{test}] ");
        if silent > 0 {
            out += &format!("{silent} of {} nodes are unknown, ", batch_status.replies.len());
        }
        out += &match (silent, failed, running, idle) {
            (0, 0, 0, _) => "is stopped\n".to_owned(),
            (0, 0, _, 0) => "is running\n".to_owned(),
            _ => format!("stopped: {idle} , running: {running}, failed: {failed}\n"),
        };
        Ok(CommandOutput::success(out))
    }

    pub(super) fn list_batches(&self) -> String {
        let state = self.state.lock();
        let lines = state
            .batches
            .iter()
            .enumerate()
            .map(|(i, b)| format!("{}) {}\n", i + 1, b.name));
        lines.collect::<String>() + &format!("Total {} batches\n", state.batches.len())
    }

    pub(super) fn list_batch(
        &self,
        name: &str,
        test: Option<u32>,
        server: bool,
        filter: Option<NodeFilter>,
    ) -> Result<CommandOutput> {
        let state = self.state.lock();
        let batch = state.batch(name).map_err(batch_error_message(name))?;
        let nids_of = |test: &Test| -> Result<(Vec<Nid>, Vec<Nid>)> {
            let nids = |group: &str| {
                state
                    .group(group)
                    .map(|g| g.nids.clone())
                    .map_err(batch_error_message(name))
            };
            Ok((nids(&test.from)?, nids(&test.to)?))
        };
        let selected = match test {
            None => None,
            Some(n) => {
                let test = (n as usize).checked_sub(1).and_then(|i| batch.tests.get(i));
                Some((
                    n as usize,
                    test.ok_or_else(|| error_message(&format!("test {n} of batch {name}"), Errno::ENOENT))?,
                ))
            }
        };
        if let Some(filter) = filter {
            let (clients, servers) = match selected {
                Some((_, test)) => nids_of(test)?,
                None => (batch.clients.clone(), batch.servers.clone()),
            };
            let matches = |node_state: &NodeState| {
                if *node_state == NodeState::Active {
                    filter.active
                } else {
                    filter.invalid
                }
            };
            let states: Vec<NodeState> = ALL_STATES.into_iter().filter(matches).collect();
            let (lines, count) = text::node_lines(&state, if server { &servers } else { &clients }, &states);
            return Ok(CommandOutput::success(format!("{lines}Total {count} nodes\n")));
        }
        let mut out = String::new();
        if selected.is_none() {
            let code = if batch.running { RUNNING } else { IDLE };
            out += &format!("Batch: {name} Tests: {} State: {code}\n", batch.tests.len());
            out += &text::client_server_tallies(&state.tally(&batch.clients), &state.tally(&batch.servers));
        }
        let all = batch.tests.iter().enumerate().map(|(i, test)| (i + 1, test));
        for (n, test) in all.filter(|(n, _)| selected.is_none_or(|(only, _)| only == *n)) {
            let (clients, servers) = nids_of(test)?;
            out += &text::test_line(n, test);
            out += &text::client_server_tallies(&state.tally(&clients), &state.tally(&servers));
        }
        Ok(CommandOutput::success(out))
    }

    pub(super) async fn add_test(&self, test: &TestRequest) -> Result<CommandOutput> {
        let TestRequest {
            batch: name,
            from,
            to,
            dist,
            span,
            ..
        } = test;
        let concurrency = test.concurrency;
        if test.loops == 0
            || concurrency == 0
            || concurrency > wire::LST_MAX_CONCUR
            || *dist == 0
            || *span == 0
        {
            return Err(format!(
                "a test needs a loop count other than 0, a concurrency from 1 to {}, and a distribution of 1:1 or more",
                wire::LST_MAX_CONCUR
            ));
        }
        let (id, clients, servers, feats) = {
            let state = self.state.lock();
            let batch = state.batch(name).map_err(batch_error_message(name))?;
            if batch.running {
                return Err(format!("batch {name} is running: stop it first"));
            }
            let nids = |group: &str| {
                let nids = state
                    .group(group)
                    .map_err(|e| error_message(&format!("group {group}"), e))?
                    .nids
                    .clone();
                match nids.iter().find(|&&nid| state.state_of(nid) != NodeState::Active) {
                    Some(&nid) => Err(format!(
                        "group {group}: {} is not in the session",
                        text::process_id(nid)
                    )),
                    None => Ok(nids),
                }
            };
            (batch.id, nids(from)?, nids(to)?, state.feats)
        };
        let servers_by_client: std::result::Result<Vec<_>, _> = (0..clients.len())
            .map(|i| servers_of(i, *dist as usize, *span as usize, &servers))
            .collect();
        let servers_by_client = servers_by_client.map_err(|_| {
            format!(
                "group {to} has {} nodes: --distribute {dist}:{span} needs more",
                servers.len()
            )
        })?;
        let request = SrpcTestReqst {
            tsr_sid: self.sid(),
            tsr_bid: LstBid { bat_id: id },
            tsr_service: if test.kind == TestKind::Ping {
                SRPC_SERVICE_PING
            } else {
                SRPC_SERVICE_BRW
            },
            tsr_concur: concurrency,
            tsr_stop_onerr: 1,
            tsr_u: encode_operation(test.kind, feats),
            ..SrpcTestReqst::default()
        };
        let server_request = SrpcTestReqst {
            tsr_loop: server_concurrency(clients.len(), servers.len(), *dist, *span, concurrency),
            ..request
        };
        let mut replies = self
            .call_nodes(
                servers.iter().map(|&nid| (nid, server_request.into())),
                CALL_TIMEOUT,
            )
            .await;
        let mut failed = failures("add test", &replies, &[]);
        if failed.is_empty() {
            let request_of = |(&nid, servers): (&Nid, &Vec<Nid>)| {
                let client_request = SrpcTestReqst {
                    tsr_loop: test.loops as u32,
                    tsr_is_client: 1,
                    tsr_ndest: servers.len() as u32,
                    ..request
                };
                (
                    nid,
                    client_request.into(),
                    Bulk::Source(write_destinations(servers).into()),
                )
            };
            replies = self
                .call_nodes_with_bulk(
                    clients.iter().zip(&servers_by_client).map(request_of).collect(),
                    CALL_TIMEOUT,
                )
                .await;
            failed = failures("add test", &replies, &[]);
        }
        // List the test even if a node refused it, so that the user can query the batch.
        let mut state = self.state.lock();
        let batch = state.batch_mut(name).map_err(batch_error_message(name))?;
        for (listed, added) in [(&mut batch.clients, &clients), (&mut batch.servers, &servers)] {
            for nid in added {
                if !listed.contains(nid) {
                    listed.push(*nid);
                }
            }
        }
        batch.tests.push(Test {
            kind: test.kind,
            loops: test.loops,
            concurrency,
            from: from.clone(),
            to: to.clone(),
        });
        if failed.is_empty() {
            return Ok(CommandOutput::success("Test was added successfully\n"));
        }
        Ok(CommandOutput::failure(failed.trim_end()))
    }
}

/// The operation of a test in the wire format of a session with these features.
fn encode_operation(kind: TestKind, feats: u32) -> [u8; 12] {
    let TestKind::Brw {
        write,
        check,
        size,
        offset,
    } = kind
    else {
        return [0; 12];
    };
    let opc = if write {
        wire::LST_BRW_WRITE
    } else {
        wire::LST_BRW_READ
    };
    let bytes = if feats & LST_FEAT_BULK_LEN == 0 {
        let v0 = TestBulkReq {
            blk_opc: opc,
            blk_npg: size.div_ceil(PAGE as u32),
            blk_flags: check,
        };
        v0.to_bytes()
    } else {
        let v1 = TestBulkReqV1 {
            blk_opc: opc as u16,
            blk_flags: check as u16,
            blk_len: size,
            blk_offset: offset,
        };
        v1.to_bytes()
    };
    let mut out = [0; 12];
    out.iter_mut()
        .zip(bytes.iter())
        .for_each(|(to, from)| *to = *from);
    out
}
