//! The framework service of a node under test: its session with batches and tests, and the replies
//! to consoles. The module does no I/O: it takes requests and the time, and returns replies and
//! work to do.
//!
//! Status values are Lustre's. A session ends when its console has sent as many requests to remove
//! the session as to create it, when another session takes the node by force, after a time without
//! requests of any console, or when the node stops serving. The session's tests then stop. While a
//! test still has active units, the session counts as a zombie.

use crate::run::{ErrorCounts, Run};
use crate::settings::{BATCHES_MAX, TESTS_MAX, UNITS_MAX};
use crate::spec::{self, TestSpec};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::{
    Errno, LST_FEATS_MASK, LnetCountersCommon, LstSid, Nid, SRPC_BATCH_OPC_QUERY, SRPC_BATCH_OPC_RUN,
    SRPC_BATCH_OPC_STOP, SRPC_MSG_VERSION, Selftest, SfwCounters, SrpcBatchReply, SrpcBatchReqst, SrpcBody,
    SrpcBrwReply, SrpcCounters, SrpcDebugReply, SrpcJoinReply, SrpcMksnReply, SrpcMksnReqst, SrpcPingReply,
    SrpcRmsnReply, SrpcRmsnReqst, SrpcStatReply, SrpcStatReqst, SrpcTestReply, SrpcTestReqst, Text,
};

/// The session id in messages of a node without a session.
pub const NO_SID: LstSid = LstSid {
    ses_nid: Nid::ANY,
    ses_stamp: -1,
};

/// The action for a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Send this reply.
    Reply(Selftest),
    /// Fetch this many bytes of destinations, then call [`Framework::add_client`].
    Fetch(u32),
    /// Start these runs and send this reply.
    Start(Vec<Arc<Run>>, Selftest),
    /// Drop the request. The text completes the sentence "the message ...".
    Drop(&'static str),
}

/// The session state of a node.
#[derive(Debug)]
pub(crate) struct Framework {
    session: Option<Session>,
    /// The active runs of each ended session.
    zombies: Vec<Vec<Arc<Run>>>,
    /// A session ends after this time without requests; zero: never.
    timeout: Duration,
}

/// A console's session on this node.
#[derive(Debug)]
struct Session {
    sid: LstSid,
    name: Text<32>,
    feats: u32,
    /// Number of creations of the session by its console, less the number of removals.
    references: u32,
    started: Instant,
    /// Time at which the session ends if no console sends a request; `None`: never.
    expires: Option<Instant>,
    errors: Arc<ErrorCounts>,
    batches: Vec<Batch>,
}

/// A batch of tests, which start and stop together.
#[derive(Debug)]
struct Batch {
    id: u64,
    tests: Vec<Test>,
}

/// A test on this node.
#[derive(Debug)]
struct Test {
    /// The specification to run; `None` on a server of the test, which only replies.
    client: Option<Arc<TestSpec>>,
    /// The latest run, if the test was started.
    run: Option<Arc<Run>>,
}

impl Test {
    /// The number of units that are not done.
    fn active_units(&self) -> usize {
        self.run.as_ref().map_or(0, |run| run.active_units())
    }
}

impl Batch {
    /// The number of tests with active units.
    fn active_tests(&self) -> usize {
        self.tests.iter().filter(|test| test.active_units() > 0).count()
    }
}

impl Session {
    fn batch(&self, id: u64) -> Option<&Batch> {
        self.batches.iter().find(|batch| batch.id == id)
    }

    fn batch_mut(&mut self, id: u64) -> Option<&mut Batch> {
        self.batches.iter_mut().find(|batch| batch.id == id)
    }

    /// The number of units of all tests.
    fn units(&self) -> usize {
        let tests = self.batches.iter().flat_map(|batch| &batch.tests);
        tests
            .filter_map(|test| test.client.as_ref())
            .map(|spec| units(spec))
            .sum()
    }
}

/// The number of units of a test: its maximum of requests in flight.
fn units(spec: &TestSpec) -> usize {
    spec.destinations.len() * spec.concurrency
}

/// The status field for an error.
fn status(errno: Errno) -> u32 {
    errno.0.unsigned_abs()
}

/// A reply with only a status and a session; `None` if the message is no request.
pub(crate) fn status_reply(request: &SrpcBody, status: u32, sid: LstSid) -> Option<SrpcBody> {
    macro_rules! reply {
        ($reply:ident { $status:ident, $sid:ident }) => {
            $reply {
                $status: status,
                $sid: sid,
                ..$reply::default()
            }
            .into()
        };
    }
    Some(match request {
        SrpcBody::MksnReqst(_) => reply!(SrpcMksnReply {
            mksn_status,
            mksn_sid
        }),
        SrpcBody::RmsnReqst(_) => SrpcRmsnReply {
            rmsn_status: status,
            rmsn_sid: sid,
        }
        .into(),
        SrpcBody::BatchReqst(_) => reply!(SrpcBatchReply { bar_status, bar_sid }),
        SrpcBody::StatReqst(_) => reply!(SrpcStatReply { str_status, str_sid }),
        SrpcBody::TestReqst(_) => SrpcTestReply {
            tsr_status: status,
            tsr_sid: sid,
        }
        .into(),
        SrpcBody::DebugReqst(_) => reply!(SrpcDebugReply { dbg_status, dbg_sid }),
        SrpcBody::JoinReqst(_) => reply!(SrpcJoinReply {
            join_status,
            join_sid
        }),
        SrpcBody::BrwReqst(_) => SrpcBrwReply { brw_status: status }.into(),
        SrpcBody::PingReqst(_) => SrpcPingReply {
            pnr_status: status,
            ..SrpcPingReply::default()
        }
        .into(),
        _ => return None,
    })
}

impl Framework {
    /// A framework without a session. Sessions end after `timeout` without requests; zero: never.
    pub(crate) fn new(timeout: Duration) -> Framework {
        Framework {
            session: None,
            zombies: Vec::new(),
            timeout,
        }
    }

    /// Forgets zombies without active units. Ends the session if it has timed out, and returns the
    /// session's name.
    pub(crate) fn expire_session(&mut self, now: Instant) -> Option<String> {
        self.zombies
            .retain(|runs| runs.iter().any(|run| run.active_units() > 0));
        let expires = self.session.as_ref()?.expires?;
        if now < expires {
            return None;
        }
        self.end_session()
    }

    /// Ends the session, if there is one; returns its name.
    pub(crate) fn end_session(&mut self) -> Option<String> {
        let session = self.session.take()?;
        let tests = session.batches.into_iter().flat_map(|batch| batch.tests);
        let runs: Vec<_> = tests
            .filter_map(|test| test.run)
            .filter(|run| run.active_units() > 0)
            .collect();
        runs.iter().for_each(|run| run.stop(true));
        if !runs.is_empty() {
            self.zombies.push(runs);
        }
        Some(session.name.to_string())
    }

    fn sid(&self) -> LstSid {
        self.session.as_ref().map_or(NO_SID, |session| session.sid)
    }

    /// The features in replies: the session's, or all supported ones without a session.
    fn feats(&self) -> u32 {
        self.session
            .as_ref()
            .map_or(LST_FEATS_MASK, |session| session.feats)
    }

    fn is_current_session(&self, sid: LstSid) -> bool {
        self.session.as_ref().is_some_and(|session| session.sid == sid)
    }

    /// Handles a request of a console. `counters` reads the node's counters.
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        request: &Selftest,
        counters: impl FnOnce() -> (SrpcCounters, LnetCountersCommon),
    ) -> Outcome {
        let outcome = self.dispatch(now, request, counters);
        self.restart_timeout(now);
        outcome
    }

    /// Restarts the session timeout, after a request of any console.
    fn restart_timeout(&mut self, now: Instant) {
        let timeout = self.timeout;
        if let Some(session) = &mut self.session {
            session.expires = (!timeout.is_zero()).then(|| now + timeout);
        }
    }

    fn dispatch(
        &mut self,
        now: Instant,
        request: &Selftest,
        counters: impl FnOnce() -> (SrpcCounters, LnetCountersCommon),
    ) -> Outcome {
        let body = &request.body;
        let fail = |errno: Errno, sid: LstSid, feats: u32| match status_reply(body, status(errno), sid) {
            Some(reply) => Outcome::Reply(Selftest::new(feats, reply)),
            None => Outcome::Drop("is not a request"),
        };
        if request.version != SRPC_MSG_VERSION {
            return fail(Errno::EPROTO, LstSid::default(), self.feats());
        }
        let works_without_session = matches!(body, SrpcBody::MksnReqst(_) | SrpcBody::DebugReqst(_));
        let has_unknown_feats = request.feats & !LST_FEATS_MASK != 0;
        if works_without_session && has_unknown_feats {
            return fail(Errno::EPROTO, LstSid::default(), LST_FEATS_MASK);
        }
        if !works_without_session && self.session.as_ref().is_some_and(|s| s.feats != request.feats) {
            return fail(Errno::EPROTO, self.sid(), LST_FEATS_MASK);
        }
        let reply: SrpcBody = match body {
            SrpcBody::MksnReqst(mksn) => self.make_session(now, mksn, request.feats).into(),
            SrpcBody::RmsnReqst(rmsn) => self.remove_session(rmsn).into(),
            SrpcBody::DebugReqst(_) => self.debug().into(),
            SrpcBody::StatReqst(stat) => self.stat(now, stat, counters).into(),
            SrpcBody::BatchReqst(batch) => return self.batch(batch),
            SrpcBody::TestReqst(test) => return self.add_test(test),
            _ => return Outcome::Drop("is not for the framework of a node"),
        };
        Outcome::Reply(Selftest::new(self.feats(), reply))
    }

    fn make_session(&mut self, now: Instant, request: &SrpcMksnReqst, feats: u32) -> SrpcMksnReply {
        let timeout_s = self.timeout.as_secs() as u32;
        let reply = |status: u32, sid: LstSid| SrpcMksnReply {
            mksn_status: status,
            mksn_sid: sid,
            mksn_timeout: timeout_s,
            ..SrpcMksnReply::default()
        };
        if request.mksn_sid.ses_nid == Nid::ANY {
            return reply(status(Errno::EINVAL), self.sid());
        }
        if let Some(session) = &mut self.session {
            if session.sid == request.mksn_sid {
                session.references = session.references.saturating_add(1);
                return reply(0, session.sid);
            }
            if request.mksn_force == 0 {
                return SrpcMksnReply {
                    mksn_name: session.name,
                    ..reply(status(Errno::EBUSY), session.sid)
                };
            }
        }
        self.end_session();
        self.session = Some(Session {
            sid: request.mksn_sid,
            name: request.mksn_name,
            feats,
            references: 1,
            started: now,
            expires: None,
            errors: Arc::default(),
            batches: Vec::new(),
        });
        reply(0, request.mksn_sid)
    }

    fn remove_session(&mut self, request: &SrpcRmsnReqst) -> SrpcRmsnReply {
        let reply = |status: u32, sid: LstSid| SrpcRmsnReply {
            rmsn_status: status,
            rmsn_sid: sid,
        };
        let Some(session) = self
            .session
            .as_mut()
            .filter(|_| request.rmsn_sid.ses_nid != Nid::ANY)
        else {
            let errno = if request.rmsn_sid.ses_nid == Nid::ANY {
                Errno::EINVAL
            } else {
                Errno::ESRCH
            };
            return reply(status(errno), self.sid());
        };
        if session.sid != request.rmsn_sid {
            return reply(status(Errno::EBUSY), session.sid);
        }
        session.references -= 1;
        if session.references > 0 {
            return reply(0, session.sid);
        }
        self.end_session();
        reply(0, NO_SID)
    }

    fn debug(&self) -> SrpcDebugReply {
        match &self.session {
            None => SrpcDebugReply {
                dbg_status: status(Errno::ESRCH),
                dbg_sid: NO_SID,
                ..SrpcDebugReply::default()
            },
            Some(session) => SrpcDebugReply {
                dbg_status: 0,
                dbg_sid: session.sid,
                dbg_timeout: self.timeout.as_secs() as u32,
                dbg_nbatch: session.batches.len() as u32,
                dbg_name: session.name,
            },
        }
    }

    fn stat(
        &mut self,
        now: Instant,
        request: &SrpcStatReqst,
        counters: impl FnOnce() -> (SrpcCounters, LnetCountersCommon),
    ) -> SrpcStatReply {
        let mut reply = SrpcStatReply {
            str_sid: self.sid(),
            ..SrpcStatReply::default()
        };
        if request.str_sid.ses_nid == Nid::ANY {
            reply.str_status = status(Errno::EINVAL);
            return reply;
        }
        let Some(session) = self.session.as_ref().filter(|s| s.sid == request.str_sid) else {
            reply.str_status = status(Errno::ESRCH);
            return reply;
        };
        reply.str_fw = SfwCounters {
            running_ms: now.duration_since(session.started).as_millis() as u32,
            active_batches: session
                .batches
                .iter()
                .filter(|batch| batch.active_tests() > 0)
                .count() as u32,
            zombie_sessions: self.zombies.len() as u32,
            brw_errors: session.errors.brw.load(Relaxed),
            ping_errors: session.errors.ping.load(Relaxed),
        };
        (reply.str_rpc, reply.str_lnet) = counters();
        reply
    }

    fn batch(&mut self, request: &SrpcBatchReqst) -> Outcome {
        let (sid, feats) = (self.sid(), self.feats());
        let reply = |result: Result<u32, Errno>| {
            let reply = SrpcBatchReply {
                bar_status: result.map_or_else(status, |_| 0),
                bar_sid: sid,
                bar_active: result.unwrap_or(0),
                bar_time: 0,
            };
            Selftest::new(feats, reply)
        };
        if !self.is_current_session(request.bar_sid) {
            return Outcome::Reply(reply(Err(Errno::ESRCH)));
        }
        let session = self.session.as_mut();
        let errors = session.as_ref().map(|s| s.errors.clone()).unwrap_or_default();
        let Some(batch) = session.and_then(|s| s.batch_mut(request.bar_bid.bat_id)) else {
            return Outcome::Reply(reply(Err(Errno::ENOENT)));
        };
        match request.bar_opc {
            SRPC_BATCH_OPC_RUN if batch.active_tests() > 0 => Outcome::Reply(reply(Ok(0))),
            SRPC_BATCH_OPC_RUN => {
                for test in &mut batch.tests {
                    let run = |spec: &Arc<TestSpec>| Run::new(spec.clone(), errors.clone(), units(spec));
                    test.run = test.client.as_ref().map(run);
                }
                let runs = batch.tests.iter().filter_map(|test| test.run.clone()).collect();
                Outcome::Start(runs, reply(Ok(0)))
            }
            SRPC_BATCH_OPC_STOP => {
                let runs = batch.tests.iter().filter_map(|test| test.run.as_ref());
                runs.for_each(|run| run.stop(request.bar_arg != 0));
                Outcome::Reply(reply(Ok(0)))
            }
            SRPC_BATCH_OPC_QUERY => Outcome::Reply(reply(match request.bar_testidx as usize {
                0 => Ok(batch.active_tests() as u32),
                n => batch
                    .tests
                    .get(n - 1)
                    .map(|test| test.active_units() as u32)
                    .ok_or(Errno::ENOENT),
            })),
            _ => Outcome::Drop("has an unknown batch operation"),
        }
    }

    /// Adds a server's test at once. For a client's test, requests the destinations from the caller
    /// ([`Outcome::Fetch`]).
    fn add_test(&mut self, request: &SrpcTestReqst) -> Outcome {
        match self.check_test(request) {
            Ok(()) if request.tsr_is_client != 0 => Outcome::Fetch(spec::list_len(request)),
            checked => {
                let added = checked.and_then(|()| self.insert_test(request, None));
                Outcome::Reply(self.test_reply(added))
            }
        }
    }

    /// Adds a client's test with the fetched list of destinations. Checks the request again,
    /// because the session may have ended meanwhile.
    pub(crate) fn add_client(&mut self, now: Instant, request: &SrpcTestReqst, list: &[u8]) -> Selftest {
        let added = self.check_test(request).and_then(|()| {
            let spec = spec::parse(request, list, self.feats())?;
            self.insert_test(request, Some(Arc::new(spec)))
        });
        self.restart_timeout(now);
        self.test_reply(added)
    }

    fn test_reply(&self, added: Result<(), Errno>) -> Selftest {
        let reply = SrpcTestReply {
            tsr_status: added.map_or_else(status, |()| 0),
            tsr_sid: self.sid(),
        };
        Selftest::new(self.feats(), reply)
    }

    fn check_test(&self, request: &SrpcTestReqst) -> Result<(), Errno> {
        spec::check(request)?;
        let session = self
            .session
            .as_ref()
            .filter(|s| s.sid == request.tsr_sid)
            .ok_or(Errno::ENOENT)?;
        match session.batch(request.tsr_bid.bat_id) {
            Some(batch) if batch.active_tests() > 0 => Err(Errno::EBUSY),
            Some(batch) if batch.tests.len() >= TESTS_MAX => Err(Errno::ENOMEM),
            None if session.batches.len() >= BATCHES_MAX => Err(Errno::ENOMEM),
            _ => Ok(()),
        }
    }

    fn insert_test(&mut self, request: &SrpcTestReqst, client: Option<Arc<TestSpec>>) -> Result<(), Errno> {
        let session = self.session.as_mut().ok_or(Errno::ENOENT)?;
        if session.units() + client.as_ref().map_or(0, |spec| units(spec)) > UNITS_MAX {
            return Err(Errno::ENOMEM);
        }
        let id = request.tsr_bid.bat_id;
        if session.batch(id).is_none() {
            session.batches.push(Batch {
                id,
                tests: Vec::new(),
            });
        }
        let batch = session.batch_mut(id).ok_or(Errno::ENOENT)?;
        batch.tests.push(Test { client, run: None });
        Ok(())
    }
}

#[cfg(test)]
#[path = "framework_tests.rs"]
mod tests;
