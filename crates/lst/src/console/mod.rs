//! The console: one session, the nodes that it has invited, the tests that it has them run.
//!
//! What it keeps is pure ([`state`]); a command asks a list of nodes at once ([`transact`]) and says what came of it in
//! the words of `lst` ([`ops`], [`batches`], [`text`]). A node whose session would run out is asked for news in time; a console that
//! nobody asks for anything for too long ends its session.

mod batches;
mod command;
mod ids;
mod ops;
mod state;
mod tests_of;
mod text;
mod transact;

pub use command::{
    Command, GroupCounts, Listed, NodeCounts, NodeState, Said, Shown, TestKind, TestWanted, Update, Whom,
};
pub use tests_of::parse_test;
pub use text::{Rates, RatesShown};

use crate::Node;
use crate::framework::NO_SID;
use crate::server::Joined;
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

/// How often it is looked which nodes are to be asked for news.
const TICK: Duration = Duration::from_secs(1);
/// A node whose session never runs out is asked so often all the same.
const PING_INTERVAL_S: u32 = 8;

/// How a session begins.
#[derive(Debug, Clone)]
pub struct SessionWanted {
    /// Its name, at most 31 bytes.
    pub name: String,
    /// The key that its commands have (`LST_SESSION`).
    pub key: u32,
    /// A console that is asked for nothing for so long ends its session.
    pub timeout: Duration,
    /// Take nodes from the sessions that they are in.
    pub force: bool,
    /// What nodes must know.
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
    wanted: SessionWanted,
    state: Mutex<State>,
    last_used: Mutex<Instant>,
    /// One command at a time.
    turn: tokio::sync::Mutex<()>,
    ended: watch::Sender<bool>,
}

impl Console {
    /// Begins a session on this node, which also answers as a node under test.
    pub fn start(node: Arc<Node>, wanted: SessionWanted) -> Result<Console, Errno> {
        if wanted.name.len() >= wire::LST_NAME_SIZE as usize || wanted.name.contains('\0') {
            return Err(Errno::E2BIG);
        }
        if wanted.feats & !LST_FEATS_MASK != 0 {
            return Err(Errno::EINVAL);
        }
        let stamp = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_millis();
        let sid = LstSid {
            ses_nid: node.srpc().lnet.nid(),
            ses_stamp: stamp as i64,
        };
        let inner = Arc::new(Inner {
            state: Mutex::new(State::new(sid, wanted.feats)),
            node,
            wanted,
            last_used: Mutex::new(Instant::now()),
            turn: tokio::sync::Mutex::new(()),
            ended: watch::channel(false).0,
        });
        inner.node.set_console(Some(inner.clone()));
        let cpts = inner.node.srpc().lnet.cpts().clone();
        let pinger = cpts
            .get(cpt::CptId(0))
            .spawn(keep_alive(inner.clone()))
            .abort_handle();
        Ok(Console { inner, pinger })
    }

    /// Does what a command says.
    pub async fn execute(&self, command: Command) -> Said {
        *self.inner.last_used.lock() = Instant::now();
        self.inner.execute(command).await
    }

    /// What the nodes of groups, or of lists, have counted.
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
            // An error means that the console is gone, and its session with it.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// How the session began: a line, as `lst new_session` says it.
    pub fn begun(&self) -> String {
        let SessionWanted {
            name,
            timeout,
            force,
            feats,
            ..
        } = &self.inner.wanted;
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

    /// Ends the session on all its nodes; what failed.
    async fn end(&self) -> Vec<transact::Asked> {
        let (sid, active) = {
            let state = self.state.lock();
            let active = state.nodes.iter().filter(|n| n.state == NodeState::Active);
            (state.sid, active.map(|n| n.nid).collect::<Vec<_>>())
        };
        let rmsn = SrpcRmsnReqst {
            rmsn_sid: sid,
            ..SrpcRmsnReqst::default()
        };
        let asked = self
            .ask(active.into_iter().map(|nid| (nid, rmsn.into())), transact::LIMIT)
            .await;
        self.ended.send_replace(true);
        asked
    }
}

/// Asks nodes for news before their sessions run out, and ends the session when nobody uses the console.
async fn keep_alive(console: Arc<Inner>) {
    loop {
        tokio::time::sleep(TICK).await;
        if console.last_used.lock().elapsed() > console.wanted.timeout {
            tracing::warn!(
                "the session has expired: nobody has used its console for {:?}",
                console.wanted.timeout
            );
            console.end().await;
            return;
        }
        let due: Vec<Nid> = {
            let state = console.state.lock();
            let due = |n: &&state::Known| {
                let often = if n.timeout_s == 0 {
                    PING_INTERVAL_S
                } else {
                    n.timeout_s / 2
                };
                n.state == NodeState::Active && n.heard.elapsed().as_secs() >= often.into()
            };
            state.nodes.iter().filter(due).map(|n| n.nid).collect()
        };
        let debug = SrpcDebugReqst {
            dbg_sid: console.sid(),
            ..SrpcDebugReqst::default()
        };
        console
            .ask(due.into_iter().map(|nid| (nid, debug.into())), transact::LIMIT)
            .await;
    }
}

impl Joined for Inner {
    fn join(&self, from: Nid, request: &Selftest) -> Selftest {
        let mut state = self.state.lock();
        let status = match &request.body {
            SrpcBody::JoinReqst(join) => {
                let ours = [NO_SID.ses_nid, state.sid.ses_nid].contains(&join.join_sid.ses_nid);
                if *self.ended.borrow() {
                    Some(Errno::ESRCH)
                } else if !state.agree(request.feats) {
                    Some(Errno::EPROTO)
                } else if !ours {
                    Some(Errno::EBUSY)
                } else {
                    join_group(&mut state, from, join.join_group.as_str(), self.wanted.timeout).err()
                }
            }
            _ => Some(Errno::EINVAL),
        };
        let reply = SrpcJoinReply {
            join_status: status.map_or(0, |e| e.0 as u32),
            join_sid: state.sid,
            join_timeout: self.wanted.timeout.as_secs() as u32,
            join_session: Text::truncated(&self.wanted.name),
        };
        Selftest::new(state.feats, reply)
    }
}

fn join_group(state: &mut State, from: Nid, name: &str, timeout: Duration) -> Result<(), Errno> {
    if state.group(name).is_err() {
        state.add_group(name)?;
    }
    let group = state.free_group(name)?;
    if group.nids.contains(&from) {
        return Err(Errno::EEXIST);
    }
    group.nids.push(from);
    let node = state.node(Instant::now(), from);
    (node.state, node.timeout_s) = (NodeState::Active, timeout.as_secs() as u32);
    Ok(())
}
