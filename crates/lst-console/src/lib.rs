//! The console of LNet selftest (crate `lst`): one session, its nodes, and the tests that they run.
//!
//! [`state`] keeps the session's state and does no I/O. A command sends requests to many nodes at
//! once ([`transact`]) and returns its output in the format of `lst` ([`ops`], [`batches`],
//! [`text`]). A node ends a session that gets no requests, so the console pings each node before
//! the node's timeout. A console that gets no command for [`SessionConfig::timeout`] ends its
//! session.

mod batches;
mod command;
mod ids;
mod ops;
mod state;
mod test_args;
mod text;
mod transact;

pub use command::{
    Command, CommandOutput, GroupCounts, GroupUpdate, NodeCounts, NodeFilter, NodeState, PingTarget,
    QueryFilter, TestKind, TestRequest,
};
pub use test_args::parse_test;
pub use text::{Rates, RatesFilter};

use lst::{JoinHandler, NO_SID, Node};
use parking_lot::Mutex;
use state::State;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use wire::{
    Errno, LST_FEATS_MASK, LstSid, Nid, Selftest, SrpcBody, SrpcDebugReqst, SrpcJoinReply, SrpcRmsnReqst,
    Text,
};

/// Interval of the checks for nodes that need a ping.
const TICK: Duration = Duration::from_secs(1);
/// Ping interval of a node without session timeout, in seconds.
const PING_INTERVAL_S: u32 = 8;

/// The parameters of a session.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// The session's name, at most 31 bytes.
    pub name: String,
    /// The session key, by which commands find the session (`LST_SESSION`).
    pub key: u32,
    /// The session ends after this time without commands.
    pub timeout: Duration,
    /// Take nodes away from other sessions.
    pub force: bool,
    /// The features that the console requests, `LST_FEAT_*`. The first node decides which ones the
    /// session uses.
    pub feats: u32,
}

/// A console with its session.
#[derive(Debug)]
pub struct Console {
    inner: Arc<Inner>,
    pinger: AbortHandle,
}

#[derive(Debug)]
struct Inner {
    node: Arc<Node>,
    config: SessionConfig,
    state: Mutex<State>,
    /// Time of the last command or request for counters.
    last_used: Mutex<Instant>,
    /// Lets one command at a time send requests. `lst stop` holds it for each query whether the
    /// batch has stopped, but not between these queries.
    command_lock: tokio::sync::Mutex<()>,
    /// Whether the session has ended.
    ended: watch::Sender<bool>,
}

impl Console {
    /// Starts a session on this node, which stays available as a node under test.
    ///
    /// # Errors
    ///
    /// `E2BIG` for a name of more than 31 bytes or with a NUL, `EINVAL` for unknown features.
    pub fn start(node: Arc<Node>, config: SessionConfig) -> Result<Console, Errno> {
        if config.name.len() >= wire::LST_NAME_SIZE as usize || config.name.contains('\0') {
            return Err(Errno::E2BIG);
        }
        if config.feats & !LST_FEATS_MASK != 0 {
            return Err(Errno::EINVAL);
        }
        let stamp = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_millis();
        let sid = LstSid {
            ses_nid: node.lnet().nid(),
            ses_stamp: stamp as i64,
        };
        let inner = Arc::new(Inner {
            state: Mutex::new(State::new(sid, config.feats)),
            node,
            config,
            last_used: Mutex::new(Instant::now()),
            command_lock: tokio::sync::Mutex::new(()),
            ended: watch::channel(false).0,
        });
        inner.node.set_console(Some(inner.clone()));
        let cpts = inner.node.lnet().cpts().clone();
        let pinger = cpts
            .get(cpt::CptId(0))
            .spawn(keep_alive(inner.clone()))
            .abort_handle();
        Ok(Console { inner, pinger })
    }

    /// Executes a command.
    pub async fn execute(&self, command: Command) -> CommandOutput {
        *self.inner.last_used.lock() = Instant::now();
        self.inner.execute(command).await
    }

    /// The counters of the nodes of the groups or lists `names`; waits at most `timeout` for the
    /// replies of each group.
    ///
    /// # Errors
    ///
    /// A message if there is no such group, or a list is malformed.
    pub async fn counts(&self, names: &[String], timeout: Duration) -> Result<Vec<GroupCounts>, String> {
        *self.inner.last_used.lock() = Instant::now();
        self.inner.counts(names, timeout).await
    }

    /// Ends the session, if it has not ended yet.
    pub async fn end(&self) {
        if !*self.inner.ended.borrow() {
            self.inner.end().await;
        }
    }

    /// Resolves when the session has ended.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.inner.ended.subscribe();
        async move {
            // An error means that the console, and its session, are dropped.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// The session's parameters in the line that `lst new_session` prints.
    pub fn session_line(&self) -> String {
        let SessionConfig {
            name,
            timeout,
            force,
            feats,
            ..
        } = &self.inner.config;
        let force = if *force { "Yes" } else { "No" };
        let timeout = timeout.as_secs();
        format!("SESSION: {name} FEATURES: {feats:x} TIMEOUT: {timeout} FORCE: {force}")
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.pinger.abort();
        self.inner.node.set_console(None);
    }
}

impl Inner {
    fn sid(&self) -> LstSid {
        self.state.lock().sid
    }

    /// Ends the session on its active nodes; returns their replies.
    async fn end(&self) -> Vec<transact::NodeReply> {
        let (sid, active) = {
            let state = self.state.lock();
            let active = state.nodes.iter().filter(|n| n.state == NodeState::Active);
            (state.sid, active.map(|n| n.nid).collect::<Vec<_>>())
        };
        let rmsn = SrpcRmsnReqst {
            rmsn_sid: sid,
            ..SrpcRmsnReqst::default()
        };
        let replies = self
            .call_nodes(
                active.into_iter().map(|nid| (nid, rmsn.into())),
                transact::CALL_TIMEOUT,
            )
            .await;
        self.ended.send_replace(true);
        replies
    }
}

/// Pings nodes before the session times out there, and ends the session if the console gets no
/// commands.
async fn keep_alive(console: Arc<Inner>) {
    loop {
        tokio::time::sleep(TICK).await;
        if console.last_used.lock().elapsed() > console.config.timeout {
            tracing::warn!(
                "the session has expired: its console got no command for {:?}",
                console.config.timeout
            );
            console.end().await;
            return;
        }
        let due_nodes: Vec<Nid> = {
            let state = console.state.lock();
            let is_due = |n: &&state::NodeInfo| {
                let interval_s = if n.timeout_s == 0 {
                    PING_INTERVAL_S
                } else {
                    n.timeout_s / 2
                };
                n.state == NodeState::Active && n.last_reply.elapsed().as_secs() >= interval_s.into()
            };
            state.nodes.iter().filter(is_due).map(|n| n.nid).collect()
        };
        let debug = SrpcDebugReqst {
            dbg_sid: console.sid(),
            ..SrpcDebugReqst::default()
        };
        console
            .call_nodes(
                due_nodes.into_iter().map(|nid| (nid, debug.into())),
                transact::CALL_TIMEOUT,
            )
            .await;
    }
}

impl JoinHandler for Inner {
    fn join(&self, from: Nid, request: &Selftest) -> Selftest {
        let mut state = self.state.lock();
        let status = match &request.body {
            SrpcBody::JoinReqst(join) => {
                let is_own = [NO_SID.ses_nid, state.sid.ses_nid].contains(&join.join_sid.ses_nid);
                if *self.ended.borrow() {
                    Some(Errno::ESRCH)
                } else if !state.accept_features(request.feats) {
                    Some(Errno::EPROTO)
                } else if !is_own {
                    Some(Errno::EBUSY)
                } else {
                    join_group(&mut state, from, join.join_group.as_str(), self.config.timeout).err()
                }
            }
            _ => Some(Errno::EINVAL),
        };
        let reply = SrpcJoinReply {
            join_status: status.map_or(0, |e| e.0 as u32),
            join_sid: state.sid,
            join_timeout: self.config.timeout.as_secs() as u32,
            join_session: Text::truncated(&self.config.name),
        };
        Selftest::new(state.feats, reply)
    }
}

/// Adds the node `from` to a group, because the node requested it; creates a missing group.
///
/// # Errors
///
/// `EEXIST` if the group has the node, `EBUSY` if a test uses the group, `ENOMEM` if there are too
/// many groups.
fn join_group(state: &mut State, from: Nid, name: &str, timeout: Duration) -> Result<(), Errno> {
    if state.group(name).is_err() {
        state.add_group(name)?;
    }
    let group = state.unused_group_mut(name)?;
    if group.nids.contains(&from) {
        return Err(Errno::EEXIST);
    }
    group.nids.push(from);
    let node = state.node_entry(Instant::now(), from);
    (node.state, node.timeout_s) = (NodeState::Active, timeout.as_secs() as u32);
    Ok(())
}
