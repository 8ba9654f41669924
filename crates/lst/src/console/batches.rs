//! Commands about batches and their tests.

use super::command::{Listed, NodeState, Said, Shown, TestWanted};
use super::ops::{ALL_STATES, Result, check_name, failures, why};
use super::state::{Test, requests_at_once, servers_of};
use super::text::{self};
use super::transact::{Asked, LIMIT};
use super::{Inner, TestKind};
use crate::spec::write_destinations;
use crate::srpc::Bulk;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use wire::{
    Errno, LST_FEAT_BULK_LEN, LstBid, Nid, SRPC_BATCH_OPC_QUERY, SRPC_BATCH_OPC_RUN, SRPC_BATCH_OPC_STOP,
    SRPC_SERVICE_BRW, SRPC_SERVICE_PING, SrpcBatchReqst, SrpcBody, SrpcTestReqst, TestBulkReq, TestBulkReqV1,
    WireStruct,
};

/// How long a batch may take to stop.
const STOP_MAX: Duration = Duration::from_secs(90);
/// Between two looks at whether it has.
const STOP_PAUSE: Duration = Duration::from_millis(200);

/// How the state of a batch is shown.
const IDLE: u32 = 0xb0;
const RUNNING: u32 = 0xb1;

/// What nodes say of a batch or a test.
struct Queried {
    asked: Vec<Asked>,
    /// Nodes on which something runs.
    running: usize,
    idle: usize,
    /// Nodes that do not know it.
    failed: usize,
    /// Nodes that did not answer.
    silent: usize,
}

fn no_batch(name: &str) -> impl Fn(Errno) -> String + '_ {
    move |e| why(&format!("batch {name}"), e)
}

/// How many of its tests, or of its requests, a node says are running.
fn active(asked: &Asked) -> Option<u32> {
    match &asked.reply.as_ref().ok()?.body {
        SrpcBody::BatchReply(reply) => Some(reply.bar_active),
        _ => None,
    }
}

impl Inner {
    pub(super) fn add_batch(&self, name: &str) -> Result<Said> {
        check_name(name)?;
        self.state.lock().add_batch(name).map_err(no_batch(name))?;
        Ok(Said::out(""))
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

    pub(super) async fn run(&self, name: &str, timeout_s: u32) -> Result<Said> {
        let (id, clients) = {
            let state = self.state.lock();
            let batch = state.batch(name).map_err(no_batch(name))?;
            if let Some(&nid) = batch
                .clients
                .iter()
                .find(|&&nid| state.state_of(nid) != NodeState::Active)
            {
                return Err(format!(
                    "batch {name} cannot start: {} is not in the session",
                    text::id(nid)
                ));
            }
            (batch.id, batch.clients.clone())
        };
        let run = self.batch_request(id, SRPC_BATCH_OPC_RUN, 0, timeout_s);
        let asked = self
            .ask(clients.into_iter().map(|nid| (nid, run.clone())), LIMIT)
            .await;
        if asked.iter().any(|a| a.status() == Ok(0)) {
            self.state.lock().batch_mut(name).map_err(no_batch(name))?.running = true;
        }
        match failures("run batch", &asked, &[]) {
            failed if failed.is_empty() => Ok(Said::out(format!("{name} is running now\n"))),
            failed => Ok(Said::failed(failed.trim_end())),
        }
    }

    pub(super) async fn stop(&self, name: &str, force: bool) -> Result<Said> {
        let (id, clients) = {
            let state = self.state.lock();
            let batch = state.batch(name).map_err(no_batch(name))?;
            let active = |nid: &Nid| state.state_of(*nid) == NodeState::Active;
            (
                batch.id,
                batch.clients.iter().copied().filter(active).collect::<Vec<_>>(),
            )
        };
        let stop = self.batch_request(id, SRPC_BATCH_OPC_STOP, 0, force.into());
        let asked = self
            .ask(clients.into_iter().map(|nid| (nid, stop.clone())), LIMIT)
            .await;
        match failures("stop batch", &asked, &[Errno::EPERM.0 as u32]) {
            failed if failed.is_empty() => Ok(Said::out("")),
            failed => Ok(Said::failed(failed.trim_end())),
        }
    }

    /// Waits until nothing of a batch runs any more.
    pub(super) async fn until_stopped(&self, name: &str, mut said: Said) -> Said {
        let deadline = Instant::now() + STOP_MAX;
        loop {
            let queried = {
                let _turn = self.turn.lock().await;
                self.ask_batch(name, 0, false, LIMIT).await
            };
            let queried = match queried {
                Ok(queried) => queried,
                Err(e) => return Said::failed(e),
            };
            if queried.running == 0 && queried.failed == 0 {
                said.out += "Batch is stopped\n";
                return said;
            }
            if Instant::now() > deadline {
                let running = queried.running;
                return Said::failed(format!(
                    "{name} still runs on {running} nodes after {STOP_MAX:?}: stop it with --force"
                ));
            }
            sleep(STOP_PAUSE).await;
        }
    }

    /// Asks the clients, or the servers, of a batch or a test.
    async fn ask_batch(&self, name: &str, test: u32, server: bool, limit: Duration) -> Result<Queried> {
        let (id, nids) = {
            let state = self.state.lock();
            let batch = state.batch(name).map_err(no_batch(name))?;
            let nids = match (test as usize, server) {
                (0, false) => batch.clients.clone(),
                (0, true) => batch.servers.clone(),
                (n, server) => {
                    let test = batch
                        .tests
                        .get(n - 1)
                        .ok_or_else(|| why(&format!("test {n} of batch {name}"), Errno::ENOENT))?;
                    let group = if server { &test.to } else { &test.from };
                    state.group(group).map_err(no_batch(name))?.nids.clone()
                }
            };
            (batch.id, nids)
        };
        let query = self.batch_request(id, SRPC_BATCH_OPC_QUERY, test, 0);
        let asked = self
            .ask(nids.into_iter().map(|nid| (nid, query.clone())), limit)
            .await;
        let running = asked.iter().filter(|a| active(a).is_some_and(|n| n > 0)).count();
        let queried = Queried {
            running,
            idle: asked.iter().filter(|a| active(a) == Some(0)).count(),
            failed: asked.iter().filter(|a| a.status().is_ok_and(|s| s != 0)).count(),
            silent: asked.iter().filter(|a| a.status().is_err()).count(),
            asked,
        };
        if test == 0 && !server && queried.running == 0 && queried.silent == 0 {
            self.state.lock().batch_mut(name).map_err(no_batch(name))?.running = false;
        }
        Ok(queried)
    }

    pub(super) async fn query(
        &self,
        name: &str,
        test: u32,
        server: bool,
        timeout_s: u64,
        verbose: Option<Shown>,
    ) -> Result<Said> {
        let queried = self
            .ask_batch(name, test, server, Duration::from_secs(timeout_s))
            .await?;
        let Queried {
            running,
            idle,
            failed,
            silent,
            ..
        } = queried;
        if let Some(shown) = verbose {
            if queried.asked.is_empty() {
                return Ok(Said::out("there are no nodes\n"));
            }
            let line = |a: &Asked| {
                let runs = active(a).is_some_and(|n| n > 0);
                let wrong = a.status() != Ok(0);
                if (shown.active && !runs) || (shown.idle && runs) || (shown.error && !wrong) {
                    return None;
                }
                let is = match a.status() {
                    Err(e) => e.to_string(),
                    Ok(_) if runs => "Running".to_owned(),
                    Ok(_) => "Idle".to_owned(),
                };
                Some(format!("{} [{}]: {is}\n", text::id(a.nid), a.state.name()))
            };
            return Ok(Said::out(
                queried.asked.iter().filter_map(line).collect::<String>(),
            ));
        }
        let mut out = format!("{name} [{test}] ");
        if silent > 0 {
            out += &format!("{silent} of {} nodes are unknown, ", queried.asked.len());
        }
        out += &match (silent, failed, running, idle) {
            (0, 0, 0, _) => "is stopped\n".to_owned(),
            (0, 0, _, 0) => "is running\n".to_owned(),
            _ => format!("stopped: {idle} , running: {running}, failed: {failed}\n"),
        };
        Ok(Said::out(out))
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
        listed: Option<Listed>,
    ) -> Result<Said> {
        let state = self.state.lock();
        let batch = state.batch(name).map_err(no_batch(name))?;
        let sides_of = |test: &Test| -> Result<(Vec<Nid>, Vec<Nid>)> {
            let nids = |group: &str| state.group(group).map(|g| g.nids.clone()).map_err(no_batch(name));
            Ok((nids(&test.from)?, nids(&test.to)?))
        };
        let chosen = match test {
            None => None,
            Some(n) => {
                let at = (n as usize).checked_sub(1).and_then(|i| batch.tests.get(i));
                Some((
                    n as usize,
                    at.ok_or_else(|| why(&format!("test {n} of batch {name}"), Errno::ENOENT))?,
                ))
            }
        };
        if let Some(listed) = listed {
            let (clients, servers) = match chosen {
                Some((_, test)) => sides_of(test)?,
                None => (batch.clients.clone(), batch.servers.clone()),
            };
            let wanted = |is: &NodeState| {
                if *is == NodeState::Active {
                    listed.active
                } else {
                    listed.invalid
                }
            };
            let states: Vec<NodeState> = ALL_STATES.into_iter().filter(wanted).collect();
            let (lines, count) = text::nodes(&state, if server { &servers } else { &clients }, &states);
            return Ok(Said::out(format!("{lines}Total {count} nodes\n")));
        }
        let mut out = String::new();
        if chosen.is_none() {
            let is = if batch.running { RUNNING } else { IDLE };
            out += &format!("Batch: {name} Tests: {} State: {is}\n", batch.tests.len());
            out += &text::sides(&state.tally(&batch.clients), &state.tally(&batch.servers));
        }
        let all = batch.tests.iter().enumerate().map(|(i, test)| (i + 1, test));
        for (n, test) in all.filter(|(n, _)| chosen.is_none_or(|(only, _)| only == *n)) {
            let (clients, servers) = sides_of(test)?;
            out += &text::test(n, test);
            out += &text::sides(&state.tally(&clients), &state.tally(&servers));
        }
        Ok(Said::out(out))
    }

    pub(super) async fn add_test(&self, wanted: &TestWanted) -> Result<Said> {
        let TestWanted {
            batch: name,
            from,
            to,
            dist,
            span,
            ..
        } = wanted;
        let concurrency = wanted.concurrency;
        if wanted.loops == 0
            || concurrency == 0
            || concurrency > wire::LST_MAX_CONCUR
            || *dist == 0
            || *span == 0
        {
            return Err(format!(
                "a test is repeated at least once, with a concurrency from 1 to {}, distributed as 1:1 or more",
                wire::LST_MAX_CONCUR
            ));
        }
        let (id, clients, servers, feats) = {
            let state = self.state.lock();
            let batch = state.batch(name).map_err(no_batch(name))?;
            if batch.running {
                return Err(format!("batch {name} runs: stop it first"));
            }
            let nids = |group: &str| {
                let nids = state
                    .group(group)
                    .map_err(|e| why(&format!("group {group}"), e))?
                    .nids
                    .clone();
                match nids.iter().find(|&&nid| state.state_of(nid) != NodeState::Active) {
                    Some(&nid) => Err(format!("group {group}: {} is not in the session", text::id(nid))),
                    None => Ok(nids),
                }
            };
            (batch.id, nids(from)?, nids(to)?, state.feats)
        };
        let lists: std::result::Result<Vec<_>, _> = (0..clients.len())
            .map(|i| servers_of(i, *dist as usize, *span as usize, &servers))
            .collect();
        let lists = lists.map_err(|_| {
            format!(
                "group {to} has {} nodes: --distribute {dist}:{span} needs more",
                servers.len()
            )
        })?;
        let request = SrpcTestReqst {
            tsr_sid: self.sid(),
            tsr_bid: LstBid { bat_id: id },
            tsr_service: if wanted.kind == TestKind::Ping {
                SRPC_SERVICE_PING
            } else {
                SRPC_SERVICE_BRW
            },
            tsr_concur: concurrency,
            tsr_stop_onerr: 1,
            tsr_u: parameters(wanted.kind, feats),
            ..SrpcTestReqst::default()
        };
        let serve = SrpcTestReqst {
            tsr_loop: requests_at_once(clients.len(), servers.len(), *dist, *span, concurrency),
            ..request
        };
        let mut asked = self
            .ask(servers.iter().map(|&nid| (nid, serve.into())), LIMIT)
            .await;
        let mut failed = failures("add test", &asked, &[]);
        if failed.is_empty() {
            let of = |(&nid, list): (&Nid, &Vec<Nid>)| {
                let run = SrpcTestReqst {
                    tsr_loop: wanted.loops as u32,
                    tsr_is_client: 1,
                    tsr_ndest: list.len() as u32,
                    ..request
                };
                (nid, run.into(), Bulk::Source(write_destinations(list).into()))
            };
            asked = self
                .ask_with(clients.iter().zip(&lists).map(of).collect(), LIMIT)
                .await;
            failed = failures("add test", &asked, &[]);
        }
        // It is listed even where it failed, so that it can be seen what has become of it.
        let mut state = self.state.lock();
        let batch = state.batch_mut(name).map_err(no_batch(name))?;
        for (all, some) in [(&mut batch.clients, &clients), (&mut batch.servers, &servers)] {
            for nid in some {
                if !all.contains(nid) {
                    all.push(*nid);
                }
            }
        }
        batch.tests.push(Test {
            kind: wanted.kind,
            loops: wanted.loops,
            concurrency,
            from: from.clone(),
            to: to.clone(),
        });
        if failed.is_empty() {
            return Ok(Said::out("Test was added successfully\n"));
        }
        Ok(Said::failed(failed.trim_end()))
    }
}

/// What a test sends, as its request says it to nodes with these features.
fn parameters(kind: TestKind, feats: u32) -> [u8; 12] {
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
            blk_npg: size.div_ceil(crate::pattern::PAGE as u32),
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
