//! One node's stack: its NIDs, what it serves and attaches, and the active side, put, get and ping, through the driver
//! that reaches the peer.

use crate::core::{Answer, Core, Expected};
use crate::message::{self, Msg};
use crate::ni::NiSpec;
use crate::ping::{self, PING_REPLY_MAX};
use crate::portals::{Attached, Match, Md, PortalGuard, PutSink};
use crate::router::buffers::Buffers;
use crate::tasks::Tasks;
use crate::tcp::{Link, Tcp};
use crate::{LnetConfig, LnetError, Payload, PingInfo, lo};
use cpt::{CptId, CptTable};
use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;
use wire::frame::LnetMsg;
use wire::{LNET_MAX_PAYLOAD, LNET_PROTO_PING_MATCHBITS, LNET_RESERVED_PORTAL, LnetGet, LnetHandleWire, Nid};

/// How a put ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutDone {
    /// How many bytes the peer took; without an ACK, how many were sent.
    pub mlength: u32,
}

/// What became of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEvent {
    /// Its first connection is there.
    Up(Nid),
    /// Its connections are gone; what waited for its answers has failed.
    Down(Nid),
}

/// Events that a slow listener may fall behind.
const EVENTS_MAX: usize = 256;

/// One node's LNet.
#[derive(Debug)]
pub struct Lnet {
    pub(crate) core: Arc<Core>,
    pub(crate) cpts: Arc<CptTable>,
    pub(crate) cfg: LnetConfig,
    pub(crate) tcp: Arc<Tcp>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) tasks: Arc<Tasks>,
    events: broadcast::Sender<PeerEvent>,
}

impl Lnet {
    /// A stack with no NID but `0@lo`.
    pub fn new(cpts: Arc<CptTable>, cfg: LnetConfig) -> Arc<Lnet> {
        // Only has to differ from this node's earlier boots; peers compare it for equality.
        let incarnation = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |d| d.as_nanos() as u64);
        let core = Core::new(incarnation, cpts.len(), cfg.forwarding, cfg.portal_rotor);
        let core = Arc::new(core);
        let buffers = Arc::new(Buffers::new(cpts.len(), &cfg));
        let tasks = Arc::new(Tasks::new());
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let tcp = Tcp::new(
            core.clone(),
            cpts.clone(),
            cfg.clone(),
            tasks.clone(),
            events.clone(),
            buffers.clone(),
            incarnation,
        );
        Arc::new(Lnet {
            core,
            cpts,
            cfg,
            tcp,
            buffers,
            tasks,
            events,
        })
    }

    /// Adds the NID of a TCP interface; with `listen`, peers can connect to it at once.
    pub async fn add_tcp(self: &Arc<Self>, nid: Nid, listen: bool) -> Result<(), LnetError> {
        self.add_ni(&NiSpec {
            listen,
            ..NiSpec::new(nid)
        })
    }

    /// The primary NID: the first that was added, or `0@lo`.
    pub fn nid(&self) -> Nid {
        self.core.nids().first().copied().unwrap_or(Nid::LO)
    }

    /// All NIDs that were added; `0@lo` if there are none.
    pub fn nids(&self) -> Vec<Nid> {
        let nids = self.core.nids();
        if nids.is_empty() { vec![Nid::LO] } else { nids }
    }

    /// Whether `nid` is this node.
    pub fn is_local(&self, nid: Nid) -> bool {
        self.core.is_local(nid)
    }

    /// The partitions that it runs on.
    pub fn cpts(&self) -> &Arc<CptTable> {
        &self.cpts
    }

    /// The partition that a peer belongs to; one behind routers to the one that its NID hashes to.
    pub fn cpt_of(&self, peer: Nid) -> CptId {
        let ni = self.core.nets.now().ni_for(peer).cloned();
        ni.map_or_else(|| self.cpts.of_nid(peer.0), |ni| ni.cpt_of(peer))
    }

    /// The settings that it was started with.
    pub fn config(&self) -> &LnetConfig {
        &self.cfg
    }

    /// Hands every PUT to `portal` to `sink`, until the guard is dropped.
    pub fn serve_portal(self: &Arc<Self>, portal: u32, sink: Arc<dyn PutSink>) -> PortalGuard {
        self.core.serve(portal, sink);
        PortalGuard {
            core: self.core.clone(),
            portal,
        }
    }

    /// Attaches a buffer that a peer's PUT or GET finds by its match bits. Attach before telling the peer.
    pub fn attach(self: &Arc<Self>, me: Match, md: Md) -> Attached {
        self.core.attach(me, md)
    }

    /// What happens to peers from now on.
    pub fn peer_events(&self) -> broadcast::Receiver<PeerEvent> {
        self.events.subscribe()
    }

    /// The connections to a peer; `None` for this node itself, and for peers behind routers.
    pub fn link(&self, nid: Nid) -> Option<Link> {
        let nets = self.core.nets.now();
        let ni = nets.ni_for(nid).filter(|_| !nets.is_local(nid))?;
        Some(self.tcp.link(nid, ni))
    }

    /// From now on peers that `sessions` does not name lose their connections when they are silent for
    /// `unused_peer_timeout`, so that they take no descriptors from others. Ends when `sessions` gives `None`.
    pub fn close_unused_peers(&self, sessions: impl Fn() -> Option<HashSet<Nid>> + Send + 'static) {
        let (tcp, pause) = (self.tcp.clone(), self.cfg.unused_peer_timeout);
        if pause.is_zero() {
            return;
        }
        self.tasks.spawn(self.cpts.get(self.cpts.current()), async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(in_use) = sessions() else { return };
                tcp.close_unused(&in_use);
            }
        });
    }

    /// Closes all connections and acceptors and waits until nothing of this stack runs any more. What was handed over
    /// to be sent still leaves, if the peers take it within a second.
    pub async fn shutdown(&self) {
        self.tcp.finish().await;
        self.tasks.join().await;
    }

    /// Sends `payload` to `to`. Resolves when it has left, or with `ack` when the peer has taken it.
    #[allow(clippy::too_many_arguments)] // they are a PUT's, and each call names them all
    pub async fn put(
        &self,
        to: Nid,
        portal: u32,
        match_bits: u64,
        offset: u32,
        hdr_data: u64,
        payload: Payload,
        ack: bool,
    ) -> Result<PutDone, LnetError> {
        let len = payload.len();
        if len > LNET_MAX_PAYLOAD as usize {
            return Err(LnetError::TooLong {
                len,
                limit: LNET_MAX_PAYLOAD as usize,
            });
        }
        let limit = self.cfg.transaction_timeout;
        let sent = PutDone { mlength: len as u32 };
        let op = |ack: Option<LnetHandleWire>| message::put(ack, portal, match_bits, offset, hdr_data);
        if self.is_local(to) {
            // The handle only says that an ACK is wanted: the answer comes back right here.
            let msg = Msg::to_self(op(ack.then(LnetHandleWire::default)), payload);
            let delivering = pin!(self.deliver(msg));
            let answer = within(to, "room for a PUT", limit, delivering).await?;
            return match answer.map(|msg| msg.op) {
                Some(LnetMsg::Ack(ack)) => Ok(PutDone { mlength: ack.mlength }),
                _ if ack => Err(LnetError::Unmatched { portal, match_bits }),
                _ => Ok(sent),
            };
        }
        if !ack {
            let msg = Msg::to_peer(to, op(None), payload);
            let sending = pin!(self.tcp.send(msg));
            let sending = within(to, "way to send a PUT", limit, sending);
            return sending.await.map(|()| sent);
        }
        let expected = self.core.expect(to, None);
        let msg = Msg::to_peer(to, op(Some(expected.handle)), payload);
        let asking = pin!(self.ask(msg, expected));
        match within(to, "ACK of a PUT", limit, asking).await? {
            Answer::Ack(mlength) => Ok(PutDone { mlength }),
            Answer::Reply(_) => Err(LnetError::Protocol {
                peer: to,
                why: "a REPLY to a PUT".into(),
            }),
        }
    }

    /// Fetches up to `len` bytes, from `offset` on, of the buffer that `to` has attached.
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

    /// Asks `to` which NIDs it has.
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
            LnetMsg::Get(LnetGet {
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
        let expected = self.core.expect(to, Some(len));
        let msg = Msg::to_peer(to, op(expected.handle), Payload::new());
        match self.ask(msg, expected).await? {
            Answer::Reply(payload) => Ok(payload),
            Answer::Ack(_) => Err(LnetError::Protocol {
                peer: to,
                why: "an ACK to a GET".into(),
            }),
        }
    }

    async fn ask(&self, msg: Msg, mut expected: Expected) -> Result<Answer, LnetError> {
        self.tcp.send(msg).await?;
        expected.answer().await
    }

    async fn deliver(&self, msg: Msg) -> Result<Option<Msg>, LnetError> {
        if self.tasks.stopped() {
            return Err(LnetError::ShutDown);
        }
        Ok(lo::deliver(&self.core, msg, self.cpts.current()).await)
    }
}

impl Drop for Lnet {
    /// Without [`Lnet::shutdown`] nothing waits for the tasks, but they end.
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

/// What `future` comes to, if it takes no longer than `limit`. Most do not wait at all: those need no timer. The future stays
/// where its owner has it: taken by value, it would have room twice in every future around this one.
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
