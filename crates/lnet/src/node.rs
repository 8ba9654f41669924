//! One node's stack: its NIDs, served portals and attached buffers, and the operations put, get and
//! ping. Operations on this node itself use the driver `lo`, all others the driver `tcp`.

use crate::core::{Core, PendingAnswer};
use crate::link::Link;
use crate::lnd::Lnd;
use crate::message::{self, Msg};
use crate::ni::NiSpec;
use crate::pending::Answer;
use crate::ping::{self, PING_REPLY_MAX};
use crate::portals::{MatchEntry, Md, MdHandle, PortalGuard, PutSink};
use crate::router::buffers::Buffers;
use crate::tasks::Tasks;
use crate::tcp::Tcp;
use crate::{LnetConfig, LnetError, Payload, PingInfo, lo};
use cpt::{CptId, CptTable};
use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;
use wire::frame::LnetOp;
use wire::{LNET_MAX_PAYLOAD, LNET_PROTO_PING_MATCHBITS, LNET_RESERVED_PORTAL, LnetGet, LnetHandleWire, Nid};

/// The result of a PUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutOutcome {
    /// Bytes that the peer accepted; if no ACK was requested, bytes sent.
    pub mlength: u32,
}

/// A change of a peer's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEvent {
    /// The first connection is established.
    Up(Nid),
    /// All connections are closed; operations that waited for the peer have failed.
    Down(Nid),
}

/// Capacity of the event channel: a receiver with more unread events loses the oldest ones.
const PEER_EVENTS_MAX: usize = 256;

/// One node's LNet.
#[derive(Debug)]
pub struct Lnet {
    pub(crate) core: Arc<Core>,
    pub(crate) cpts: Arc<CptTable>,
    pub(crate) cfg: LnetConfig,
    pub(crate) lnd: Lnd,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) tasks: Arc<Tasks>,
    events: broadcast::Sender<PeerEvent>,
}

impl Lnet {
    /// A stack whose only NID is `0@lo`.
    pub fn new(cpts: Arc<CptTable>, cfg: LnetConfig) -> Arc<Lnet> {
        // Must differ from the incarnations of earlier boots of this node. Peers compare
        // incarnations only for equality.
        let incarnation = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |d| d.as_nanos() as u64);
        Lnet::with_driver(
            cpts,
            cfg,
            incarnation,
            |core, cpts, cfg, tasks, events, buffers| {
                Lnd::Tcp(Tcp::new(core, cpts, cfg, tasks, events, buffers, incarnation))
            },
        )
    }

    /// The stack of a simulated node. `incarnation` distinguishes the boots of the node.
    #[cfg(feature = "sim")]
    pub fn simulated(
        cpts: Arc<CptTable>,
        cfg: LnetConfig,
        fabric: Arc<crate::sim::Fabric>,
        incarnation: u64,
    ) -> Arc<Lnet> {
        Lnet::with_driver(cpts, cfg, incarnation, |core, cpts, cfg, tasks, events, _| {
            let driver = crate::sim::SimLnd::new(fabric, core, cpts, cfg, tasks, events, incarnation);
            Lnd::Sim(driver)
        })
    }

    /// A stack with the driver that `make` returns.
    fn with_driver(
        cpts: Arc<CptTable>,
        cfg: LnetConfig,
        incarnation: u64,
        make: impl FnOnce(
            Arc<Core>,
            Arc<CptTable>,
            LnetConfig,
            Arc<Tasks>,
            broadcast::Sender<PeerEvent>,
            Arc<Buffers>,
        ) -> Lnd,
    ) -> Arc<Lnet> {
        let core = Core::new(incarnation, cpts.len(), cfg.forwarding, cfg.portal_rotor);
        let core = Arc::new(core);
        let buffers = Arc::new(Buffers::new(cpts.len(), &cfg));
        let tasks = Arc::new(Tasks::new());
        let (events, _) = broadcast::channel(PEER_EVENTS_MAX);
        let lnd = make(
            core.clone(),
            cpts.clone(),
            cfg.clone(),
            tasks.clone(),
            events.clone(),
            buffers.clone(),
        );
        Arc::new(Lnet {
            core,
            cpts,
            cfg,
            lnd,
            buffers,
            tasks,
            events,
        })
    }

    /// Adds the NID of a TCP interface. With `listen`, and unless `accept` is `none`, peers can
    /// connect to it.
    ///
    /// # Errors
    ///
    /// Those of [`Lnet::add_ni`].
    pub async fn add_tcp(self: &Arc<Self>, nid: Nid, listen: bool) -> Result<(), LnetError> {
        self.add_ni(&NiSpec {
            listen,
            ..NiSpec::new(nid)
        })
    }

    /// The primary NID: the first one added, or `0@lo`.
    pub fn nid(&self) -> Nid {
        self.core.nids().first().copied().unwrap_or(Nid::LO)
    }

    /// All NIDs added; `0@lo` if there are none.
    pub fn nids(&self) -> Vec<Nid> {
        let nids = self.core.nids();
        if nids.is_empty() { vec![Nid::LO] } else { nids }
    }

    /// Whether `nid` is this node.
    pub fn is_local(&self, nid: Nid) -> bool {
        self.core.is_local(nid)
    }

    /// The partitions of this process.
    pub fn cpts(&self) -> &Arc<CptTable> {
        &self.cpts
    }

    /// The partition that a peer belongs to. The hash of the peer's NID selects it: from the
    /// partitions of the interface to the peer's network or, for a peer behind routers, from all
    /// partitions.
    pub fn cpt_of(&self, peer: Nid) -> CptId {
        let ni = self.core.nets.snapshot().ni_for(peer).cloned();
        ni.map_or_else(|| self.cpts.of_nid(peer.0), |ni| ni.cpt_of(peer))
    }

    /// The configuration.
    pub fn config(&self) -> &LnetConfig {
        &self.cfg
    }

    /// Delivers every PUT to `portal` to `sink` until the guard is dropped.
    pub fn serve_portal(self: &Arc<Self>, portal: u32, sink: Arc<dyn PutSink>) -> PortalGuard {
        self.core.set_sink(portal, sink);
        PortalGuard {
            core: self.core.clone(),
            portal,
        }
    }

    /// Attaches a buffer that a peer's PUT or GET finds by its portal and match bits. The caller
    /// must attach the buffer before it sends the request that tells the peer the match bits.
    pub fn attach(self: &Arc<Self>, me: MatchEntry, md: Md) -> MdHandle {
        self.core.attach(me, md)
    }

    /// Subscribes to changes of peers' connections from now on.
    pub fn peer_events(&self) -> broadcast::Receiver<PeerEvent> {
        self.events.subscribe()
    }

    /// The state of the connections to a peer; `None` for this node itself and for peers on other
    /// networks.
    pub fn link(&self, nid: Nid) -> Option<Link> {
        let nets = self.core.nets.snapshot();
        let ni = nets.ni_for(nid).filter(|_| !nets.is_local(nid))?;
        Some(self.lnd.link(nid, ni))
    }

    /// Starts a task that disconnects unused peers to save descriptors. Every
    /// `unused_peer_timeout`, it disconnects the peers that `sessions` does not list and that
    /// exchanged no message since the previous check. The routers of this node's routes stay
    /// connected; a router keeps all its peers. The task ends when `sessions` returns `None`. It
    /// does not start if the timeout is zero.
    pub fn close_unused_peers(&self, sessions: impl Fn() -> Option<HashSet<Nid>> + Send + 'static) {
        let (lnd, interval) = (self.lnd.clone(), self.cfg.unused_peer_timeout);
        if interval.is_zero() {
            return;
        }
        self.tasks.spawn(self.cpts.get(self.cpts.current()), async move {
            loop {
                tokio::time::sleep(interval).await;
                let Some(in_use) = sessions() else { return };
                lnd.close_unused(&in_use);
            }
        });
    }

    /// Sends queued messages for at most a second, then closes all connections and acceptors.
    /// Returns when all tasks of the stack have ended.
    pub async fn shutdown(&self) {
        self.lnd.finish().await;
        self.tasks.join().await;
    }

    /// Sends `payload` to `to`. Resolves when it has been sent or, with `ack`, when the peer has
    /// accepted it.
    ///
    /// # Errors
    ///
    /// The payload is too long, the peer cannot be reached, the time limit has passed, or LNet is
    /// shut down. With `ack`, also if this node sends to itself and no buffer or sink takes the
    /// message.
    #[allow(clippy::too_many_arguments)] // the parameters of a PUT
    pub async fn put(
        &self,
        to: Nid,
        portal: u32,
        match_bits: u64,
        offset: u32,
        hdr_data: u64,
        payload: Payload,
        ack: bool,
    ) -> Result<PutOutcome, LnetError> {
        let len = payload.len();
        if len > LNET_MAX_PAYLOAD as usize {
            return Err(LnetError::TooLong {
                len,
                limit: LNET_MAX_PAYLOAD as usize,
            });
        }
        let limit = self.cfg.transaction_timeout;
        let sent = PutOutcome { mlength: len as u32 };
        let op = |ack: Option<LnetHandleWire>| message::put(ack, portal, match_bits, offset, hdr_data);
        if self.is_local(to) {
            // The handle only requests an ACK: the delivery itself returns the answer.
            let msg = Msg::to_self(op(ack.then(LnetHandleWire::default)), payload);
            let delivering = pin!(self.deliver(msg));
            let answer = within(to, "space for a PUT", limit, delivering).await?;
            return match answer.map(|msg| msg.op) {
                Some(LnetOp::Ack(ack)) => Ok(PutOutcome { mlength: ack.mlength }),
                _ if ack => Err(LnetError::Unmatched { portal, match_bits }),
                _ => Ok(sent),
            };
        }
        if !ack {
            let msg = Msg::to_peer(to, op(None), payload);
            let sending = pin!(self.lnd.send(msg));
            let sending = within(to, "chance to send a PUT", limit, sending);
            return sending.await.map(|()| sent);
        }
        let expected = self.core.expect_answer(to, None);
        let msg = Msg::to_peer(to, op(Some(expected.handle)), payload);
        let exchange = pin!(self.send_and_wait(msg, expected));
        match within(to, "ACK of a PUT", limit, exchange).await? {
            Answer::Ack(mlength) => Ok(PutOutcome { mlength }),
            Answer::Reply(_) => Err(LnetError::Protocol {
                peer: to,
                why: "a REPLY to a PUT".into(),
            }),
        }
    }

    /// Fetches up to `len` bytes from `offset` of a buffer that `to` has attached.
    ///
    /// # Errors
    ///
    /// `len` is too large, the peer cannot be reached or does not answer in time, or LNet is shut
    /// down. If `to` is this node, also if no buffer is attached.
    pub async fn get(
        &self,
        to: Nid,
        portal: u32,
        match_bits: u64,
        offset: u32,
        len: u32,
    ) -> Result<Payload, LnetError> {
        let limit = self.cfg.transaction_timeout;
        let fetching = pin!(self.fetch(to, portal, match_bits, offset, len));
        within(to, "REPLY to a GET", limit, fetching).await
    }

    /// Asks `to` for its NIDs.
    ///
    /// # Errors
    ///
    /// The peer cannot be reached, or its answer is late or malformed.
    pub async fn ping(&self, to: Nid, timeout: Duration) -> Result<PingInfo, LnetError> {
        let get = pin!(self.fetch(
            to,
            LNET_RESERVED_PORTAL,
            LNET_PROTO_PING_MATCHBITS,
            0,
            PING_REPLY_MAX,
        ));
        let reply = within(to, "answer to a ping", timeout, get).await?;
        ping::parse(to, &reply.into_bytes())
    }

    async fn fetch(
        &self,
        to: Nid,
        portal: u32,
        match_bits: u64,
        offset: u32,
        len: u32,
    ) -> Result<Payload, LnetError> {
        if len > LNET_MAX_PAYLOAD {
            return Err(LnetError::TooLong {
                len: len as usize,
                limit: LNET_MAX_PAYLOAD as usize,
            });
        }
        let op = |return_wmd| {
            LnetOp::Get(LnetGet {
                return_wmd,
                match_bits,
                ptl_index: portal,
                src_offset: offset,
                sink_length: len,
            })
        };
        if self.is_local(to) {
            let msg = Msg::to_self(op(LnetHandleWire::default()), Payload::new());
            let reply = self.deliver(msg).await?;
            return reply
                .map(|msg| msg.payload)
                .ok_or(LnetError::Unmatched { portal, match_bits });
        }
        let expected = self.core.expect_answer(to, Some(len));
        let msg = Msg::to_peer(to, op(expected.handle), Payload::new());
        match self.send_and_wait(msg, expected).await? {
            Answer::Reply(payload) => Ok(payload),
            Answer::Ack(_) => Err(LnetError::Protocol {
                peer: to,
                why: "an ACK to a GET".into(),
            }),
        }
    }

    async fn send_and_wait(&self, msg: Msg, mut expected: PendingAnswer) -> Result<Answer, LnetError> {
        self.lnd.send(msg).await?;
        expected.answer().await
    }

    async fn deliver(&self, msg: Msg) -> Result<Option<Msg>, LnetError> {
        if self.tasks.is_stopping() {
            return Err(LnetError::ShutDown);
        }
        Ok(lo::deliver(&self.core, msg, self.cpts.current()).await)
    }
}

impl Drop for Lnet {
    /// Stops the tasks without waiting for their end, if [`Lnet::shutdown`] has not stopped them.
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

/// Awaits `future` for at most `limit`. Most futures are ready at once and need no timer. The
/// caller pins the future: taken by value, it would add twice its size to every enclosing future.
async fn within<T>(
    peer: Nid,
    what: &'static str,
    limit: Duration,
    mut future: Pin<&mut impl Future<Output = Result<T, LnetError>>>,
) -> Result<T, LnetError> {
    if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
        return done;
    }
    match tokio::time::timeout(limit, future).await {
        Ok(result) => result,
        Err(_) => Err(LnetError::Timeout {
            peer,
            what,
            after: limit,
        }),
    }
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
