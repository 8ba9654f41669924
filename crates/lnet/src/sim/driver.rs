//! The driver of one simulated node.

use super::fabric::{Body, Fabric, Frame};
use crate::core::{Arrival, BlockedPut, Core, Delivery};
use crate::link::Link;
use crate::message::Msg;
use crate::ni::Ni;
use crate::tasks::Tasks;
use crate::{LnetConfig, LnetError, PeerEvent};
use cpt::{CptId, CptTable};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, broadcast, mpsc};
use tokio::time::{Instant, sleep, timeout};
use wire::Nid;

/// Time for which a dial attempt of this node takes precedence over one of the peer.
const RACE_MAX: Duration = Duration::from_secs(1);
/// Interval of the checks of silent peers.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which frames that the peer's host does not acknowledge break the connection; about
/// the time that the driver `tcp` takes.
const DEAD_AFTER: Duration = Duration::from_secs(5);

/// The driver.
pub(crate) struct SimLnd {
    me: Weak<SimLnd>,
    fabric: Arc<Fabric>,
    core: Arc<Core>,
    cpts: Arc<CptTable>,
    cfg: LnetConfig,
    tasks: Arc<Tasks>,
    events: broadcast::Sender<PeerEvent>,
    incarnation: u64,
    state: Mutex<State>,
    /// Notified after each change of a connection.
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// The node's NID; a simulated node has one.
    nid: Option<Nid>,
    peers: BTreeMap<Nid, Peer>,
    /// PUTs that wait for space in a sink, by peer and portal.
    blocked: BTreeMap<(Nid, u32), VecDeque<BlockedPut>>,
}

#[derive(Default)]
struct Peer {
    conn: Option<u64>,
    /// The connection that this node tries to open, and since when.
    dialing: Option<(u64, Instant)>,
    /// Number of attempts to connect that have failed.
    failures: u64,
    link: Link,
    messages: u64,
    messages_at_check: Option<u64>,
}

impl fmt::Debug for SimLnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimLnd").finish_non_exhaustive()
    }
}

impl SimLnd {
    pub(crate) fn new(
        fabric: Arc<Fabric>,
        core: Arc<Core>,
        cpts: Arc<CptTable>,
        cfg: LnetConfig,
        tasks: Arc<Tasks>,
        events: broadcast::Sender<PeerEvent>,
        incarnation: u64,
    ) -> Arc<SimLnd> {
        Arc::new_cyclic(|me| SimLnd {
            me: me.clone(),
            fabric,
            core,
            cpts,
            cfg,
            tasks,
            events,
            incarnation,
            state: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Takes the interface's NID, and begins to receive.
    pub(crate) fn open(&self, ni: &Arc<Ni>) {
        self.state.lock().nid = Some(ni.nid);
        let frames = self.fabric.register(ni.nid);
        let cpt = self.cpts.get(ni.cpt_of(ni.nid));
        self.tasks.spawn(cpt, receive_frames(self.me.clone(), frames));
        self.tasks.spawn(cpt, watch(self.me.clone()));
    }

    /// Sends a message; resolves when it is on the network.
    pub(crate) async fn send(&self, msg: Msg) -> Result<(), LnetError> {
        if self.tasks.is_stopping() {
            return Err(LnetError::ShutDown);
        }
        let to = msg.dst;
        let conn = self.connection(to).await?;
        self.transmit(to, conn, Body::Data(msg));
        Ok(())
    }

    pub(crate) fn link(&self, nid: Nid) -> Link {
        self.state
            .lock()
            .peers
            .get(&nid)
            .map(|peer| peer.link)
            .unwrap_or_default()
    }

    pub(crate) fn forget_if(&self, is_forgotten: impl Fn(Nid) -> bool, why: &str) {
        for nid in self.peers() {
            if is_forgotten(nid) {
                self.close(nid, Instant::now(), why);
                self.state.lock().peers.remove(&nid);
            }
        }
    }

    pub(crate) fn close_unused(&self, in_use: &HashSet<Nid>) {
        for nid in self.peers() {
            let unused = self.state.lock().peers.get_mut(&nid).is_some_and(|peer| {
                peer.messages_at_check.replace(peer.messages) == Some(peer.messages) && peer.conn.is_some()
            });
            if unused && !in_use.contains(&nid) {
                self.close(
                    nid,
                    Instant::now(),
                    "no upper layer uses it, and it exchanged no messages",
                );
            }
        }
    }

    /// Closes all connections.
    pub(crate) fn finish(&self) {
        for nid in self.peers() {
            self.close(nid, Instant::now(), "this node shuts down");
        }
        let nid = self.state.lock().nid.take();
        if let Some(nid) = nid {
            self.fabric.end_process(nid);
        }
    }

    fn peers(&self) -> Vec<Nid> {
        self.state.lock().peers.keys().copied().collect()
    }

    /// The number of the connection to a peer; opens one if there is none.
    async fn connection(&self, to: Nid) -> Result<u64, LnetError> {
        let mut failures = None;
        let deadline = Instant::now() + self.cfg.connect_timeout;
        loop {
            let changed = self.changed.notified();
            let hello = {
                let mut state = self.state.lock();
                if state.nid.is_none() {
                    return Err(LnetError::ShutDown);
                }
                let peer = state.peers.entry(to).or_default();
                if let Some(conn) = peer.conn {
                    return Ok(conn);
                }
                if failures.is_some_and(|before| before < peer.failures) {
                    let why = "no process listens there".to_owned();
                    return Err(LnetError::Connect { peer: to, why });
                }
                failures.get_or_insert(peer.failures);
                // The caller that began an old attempt may have given up.
                match peer
                    .dialing
                    .filter(|(_, since)| since.elapsed() < self.cfg.connect_timeout)
                {
                    Some(_) => None,
                    None => {
                        let conn = self.fabric.next_connection();
                        peer.dialing = Some((conn, Instant::now()));
                        Some(conn)
                    }
                }
            };
            if let Some(conn) = hello {
                let incarnation = self.incarnation;
                self.transmit(to, conn, Body::Hello { incarnation });
            }
            if timeout(deadline.saturating_duration_since(Instant::now()), changed)
                .await
                .is_err()
            {
                let mut state = self.state.lock();
                let peer = state.peers.entry(to).or_default();
                if peer.conn.is_none() {
                    peer.dialing = None;
                    peer.link.unreachable_at = Some(Instant::now());
                    let why = format!("no answer within {:?}", self.cfg.connect_timeout);
                    return Err(LnetError::Connect { peer: to, why });
                }
            }
        }
    }

    fn transmit(&self, to: Nid, conn: u64, body: Body) {
        let from = {
            let mut state = self.state.lock();
            state.peers.entry(to).or_default().messages += 1;
            state.nid
        };
        let Some(from) = from else { return };
        let body = match body {
            Body::Data(mut msg) => {
                if msg.src == Nid::default() {
                    msg.src = from;
                }
                Body::Data(msg)
            }
            other => other,
        };
        self.fabric.transmit(Frame { from, to, conn, body });
    }

    /// Closes the connection to a peer; `since` is the last sign of life of its host.
    fn close(&self, nid: Nid, since: Instant, why: &str) {
        let conn = {
            let mut state = self.state.lock();
            let Some(peer) = state.peers.get_mut(&nid) else {
                return;
            };
            let Some(conn) = peer.conn.take() else { return };
            peer.link.record_loss(since);
            state.blocked.retain(|(from, _), _| *from != nid);
            conn
        };
        self.transmit(nid, conn, Body::Reset);
        let why = LnetError::PeerLost {
            peer: nid,
            why: why.to_owned(),
        };
        self.core.fail_pending(nid, &why);
        // An error means that there are no subscribers.
        let _ = self.events.send(PeerEvent::Down(nid));
        self.changed.notify_waiters();
    }

    /// Starts to use a connection.
    fn connected(&self, nid: Nid, conn: u64, incarnation: u64) {
        {
            let mut state = self.state.lock();
            let peer = state.peers.entry(nid).or_default();
            peer.conn = Some(conn);
            peer.dialing = None;
            peer.link.incarnation = incarnation;
            peer.link.record_connect();
            peer.messages_at_check = None;
        }
        let _ = self.events.send(PeerEvent::Up(nid));
        self.changed.notify_waiters();
    }

    fn receive(&self, frame: Frame) {
        let (from, conn) = (frame.from, frame.conn);
        let (current, dialing, own) = {
            let mut state = self.state.lock();
            let own = state.nid;
            let peer = state.peers.entry(from).or_default();
            peer.messages += 1;
            (peer.conn, peer.dialing, own)
        };
        let is_dialed = dialing.is_some_and(|(dialed, _)| dialed == conn);
        match frame.body {
            Body::Hello { incarnation } => {
                // Both ends dial: the connection of the lower NID wins, unless its hello was lost.
                let races = dialing.is_some_and(|(_, since)| since.elapsed() < RACE_MAX);
                if races && own < Some(from) {
                    return;
                }
                self.close(from, Instant::now(), "it has connected again");
                self.connected(from, conn, incarnation);
                let incarnation = self.incarnation;
                self.transmit(from, conn, Body::HelloReply { incarnation });
            }
            Body::HelloReply { incarnation } if is_dialed => {
                self.connected(from, conn, incarnation);
            }
            Body::HelloReply { .. } if current != Some(conn) => self.transmit(from, conn, Body::Reset),
            Body::Refused if is_dialed => {
                {
                    let mut state = self.state.lock();
                    let peer = state.peers.entry(from).or_default();
                    peer.dialing = None;
                    peer.failures += 1;
                    peer.link.unreachable_at = Some(Instant::now());
                }
                self.changed.notify_waiters();
            }
            // Connection number 0 stands for every connection: the peer's process has ended.
            Body::Reset if conn == 0 || current == Some(conn) => {
                self.close(from, Instant::now(), "it closed the connection");
            }
            Body::Data(msg) if current == Some(conn) => self.deliver(from, msg),
            Body::Data(_) => self.transmit(from, conn, Body::Reset),
            Body::HelloReply { .. } | Body::Refused | Body::Reset => {}
        }
    }

    fn deliver(&self, from: Nid, msg: Msg) {
        let arrival = Arrival {
            cpt: CptId(0),
            routed: false,
        };
        let is_queued = |portal| self.state.lock().blocked.contains_key(&(from, portal));
        match self.core.receive(msg, arrival, &is_queued) {
            Delivery::Taken(answer) => answer.into_iter().for_each(|answer| self.respond(answer)),
            Delivery::Full(blocked) => self.queue(from, *blocked),
            Delivery::Dropped(why) => tracing::debug!(peer = %from, "dropping a message: {why}"),
        }
    }

    /// Sends an answer on an existing connection. Without one, nobody waits for it.
    fn respond(&self, answer: Msg) {
        let to = answer.dst;
        let conn = self.state.lock().peers.get(&to).and_then(|peer| peer.conn);
        if let Some(conn) = conn {
            self.transmit(to, conn, Body::Data(answer));
        }
    }

    /// Queues a PUT for a full sink.
    fn queue(&self, from: Nid, blocked: BlockedPut) {
        let key = (from, blocked.message.portal);
        let is_first = {
            let mut state = self.state.lock();
            let queue = state.blocked.entry(key).or_default();
            queue.push_back(blocked);
            queue.len() == 1
        };
        if is_first {
            let me = self.me.clone();
            let cpt = self.cpts.get(CptId(0));
            self.tasks.spawn(cpt, async move {
                while let Some(lnd) = me.upgrade() {
                    let next = lnd.state.lock().blocked.get_mut(&key).map(VecDeque::pop_front);
                    match next {
                        Some(Some(put)) => {
                            if let Some(answer) = put.deliver().await {
                                lnd.respond(answer);
                            }
                        }
                        _ => {
                            lnd.state.lock().blocked.remove(&key);
                            return;
                        }
                    }
                }
            });
        }
    }
}

async fn receive_frames(lnd: Weak<SimLnd>, mut frames: mpsc::UnboundedReceiver<Frame>) {
    while let Some(frame) = frames.recv().await {
        let Some(lnd) = lnd.upgrade() else { return };
        lnd.receive(frame);
    }
}

/// Closes each connection whose oldest waiting frame the peer's host has not acknowledged for
/// [`DEAD_AFTER`].
async fn watch(lnd: Weak<SimLnd>) {
    loop {
        sleep(CHECK_INTERVAL).await;
        let Some(lnd) = lnd.upgrade() else { return };
        let Some(own) = lnd.state.lock().nid else { return };
        for nid in lnd.peers() {
            let conn = lnd.state.lock().peers.get(&nid).and_then(|peer| peer.conn);
            let Some(conn) = conn else { continue };
            let since = lnd.fabric.oldest_held(own, nid, conn);
            if let Some(since) = since.filter(|since| since.elapsed() >= DEAD_AFTER) {
                lnd.fabric.drop_held(own, nid, conn);
                lnd.close(nid, since, "its host has not acknowledged anything");
            }
        }
    }
}
