//! The protocol state of one node: the sinks and buffers of its portals, and its own PUTs and GETs
//! that wait for an ACK or a REPLY ([`crate::pending`]). [`Core`] takes messages and returns
//! answers; it holds no socket, task or clock.
//!
//! Tables are sharded, so partitions rarely contend for a lock. Data that rarely changes (networks,
//! lazy portals) is read without a lock.

use crate::message::Msg;
use crate::nets::CurrentNets;
use crate::pending::{Answer, AnswerResult, PendingOps};
use crate::portals::{Entry, IncomingPut, MatchEntry, Md, MdEvent, MdHandle, PutSink};
use crate::rotor::{PortalRotor, Rotor, RoundRobin};
use crate::{LnetError, Payload};
use arc_swap::ArcSwapOption;
use cpt::{CptId, HashMap, HashSeed};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;
use wire::frame::{LnetOp, PingReply};
use wire::{
    LNET_PID_LUSTRE, LNET_PROTO_PING_MATCHBITS, LNET_RESERVED_PORTAL, LnetAck, LnetGet, LnetHandleWire,
    LnetPut, LnetReply, Nid,
};

/// Number of shards of each table.
const SHARDS: usize = 64;
/// Number of portals in LNet.
const PORTALS: usize = 64;

/// One shard of the attached buffers: by portal and match bits, in the order of attaching.
type MatchedShard = Mutex<HashMap<(u32, u64), Vec<Arc<Entry>>>>;

/// Passes the result of an operation to its waiter.
type AnswerSender = oneshot::Sender<AnswerResult>;

/// The portals and handles of one node.
pub(crate) struct Core {
    /// Distinguishes this boot of the stack from others in the handles that peers echo.
    interface_cookie: u64,
    next_object: AtomicU64,
    pub(crate) nets: CurrentNets,
    pub(crate) rotor: Rotor,
    /// Number of partitions.
    cpts: usize,
    /// The lazy portals, indexed by portal; empty if no sink serves the portal.
    lazy: Vec<ArcSwapOption<LazyPortal>>,
    matched: Vec<MatchedShard>,
    /// Operations that wait for an answer.
    pending: Vec<Mutex<PendingOps<AnswerSender>>>,
}

/// A lazy portal and the sink that serves it.
struct LazyPortal {
    sink: Arc<dyn PutSink>,
    round_robin: RoundRobin,
    /// The partitions that the sink queues on.
    sink_cpts: Vec<CptId>,
}

/// How a message reached this node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// The partition that received it.
    pub(crate) cpt: CptId,
    /// Whether a router delivered it.
    pub(crate) routed: bool,
}

/// The result of the delivery of a message to this node.
pub(crate) enum Delivery {
    /// The message was delivered; send the answer, if there is one.
    Taken(Option<Msg>),
    /// The sink of the message's lazy portal is full, or earlier messages wait for it. Offer the
    /// message again, and send the answer once the sink has taken it.
    Full(Box<BlockedPut>),
    /// The message matches no buffer or operation of this node, or exceeds a limit; the reason.
    Dropped(&'static str),
}

/// A PUT that waits for space in a sink.
pub(crate) struct BlockedPut {
    pub(crate) sink: Arc<dyn PutSink>,
    pub(crate) message: IncomingPut,
    pub(crate) answer: Option<Msg>,
}

impl BlockedPut {
    /// Waits until the sink takes the message, and returns the answer to send.
    pub(crate) async fn deliver(self) -> Option<Msg> {
        let mut message = self.message;
        loop {
            self.sink.wait_for_space().await;
            match self.sink.put(message) {
                Ok(()) => return self.answer,
                Err(full) => message = full.0,
            }
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("nids", &self.nids())
            .finish_non_exhaustive()
    }
}

/// The shard of a key, by Fibonacci hashing: consecutive keys are spread over the shards.
fn shard(n: u64) -> usize {
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS
}

impl Core {
    /// State for `cpts` partitions.
    pub(crate) fn new(interface_cookie: u64, cpts: usize, forwarding: bool, rotor: PortalRotor) -> Core {
        Core {
            interface_cookie,
            next_object: AtomicU64::new(1),
            nets: CurrentNets::new(cpts, forwarding),
            rotor: Rotor::new(rotor),
            cpts,
            lazy: (0..PORTALS).map(|_| ArcSwapOption::empty()).collect(),
            matched: (0..SHARDS).map(|_| Mutex::default()).collect(),
            pending: (0..SHARDS)
                .map(|_| Mutex::new(PendingOps::new(HashSeed::random())))
                .collect(),
        }
    }

    /// This node's NIDs without `0@lo`, the primary one first.
    pub(crate) fn nids(&self) -> Vec<Nid> {
        self.nets.snapshot().nis.iter().map(|ni| ni.nid).collect()
    }

    pub(crate) fn is_local(&self, nid: Nid) -> bool {
        self.nets.snapshot().is_local(nid)
    }

    /// Whether both NIDs are equal, or both are of this node.
    fn same_peer(&self, a: Nid, b: Nid) -> bool {
        a == b || (self.is_local(a) && self.is_local(b))
    }

    // ---- lazy portals

    pub(crate) fn set_sink(&self, portal: u32, sink: Arc<dyn PutSink>) {
        if let Some(slot) = self.lazy.get(portal as usize) {
            let sink_cpts = sink.cpts().filter(|cpts| !cpts.is_empty());
            slot.store(Some(Arc::new(LazyPortal {
                sink_cpts: sink_cpts.unwrap_or_else(|| (0..self.cpts).map(CptId).collect()),
                round_robin: RoundRobin::new(self.cpts),
                sink,
            })));
        }
    }

    pub(crate) fn remove_sink(&self, portal: u32) {
        if let Some(slot) = self.lazy.get(portal as usize) {
            slot.store(None);
        }
    }

    // ---- matched buffers

    pub(crate) fn attach(self: &Arc<Self>, me: MatchEntry, md: Md) -> MdHandle {
        let key = (me.portal, me.match_bits);
        let entry = Entry::new(me.from, md);
        self.matched_shard(key)
            .lock()
            .entry(key)
            .or_default()
            .push(entry.clone());
        MdHandle {
            core: self.clone(),
            key,
            entry,
        }
    }

    pub(crate) fn unlink(&self, key: (u32, u64), entry: &Arc<Entry>) {
        let mut shard = self.matched_shard(key).lock();
        if let Some(entries) = shard.get_mut(&key) {
            entries.retain(|e| !Arc::ptr_eq(e, entry));
            if entries.is_empty() {
                shard.remove(&key);
            }
        }
    }

    fn matched_shard(&self, key: (u32, u64)) -> &MatchedShard {
        &self.matched[shard(key.1 ^ u64::from(key.0) << 32)]
    }

    /// The first buffer attached at `key` that `wanted` accepts and that admits `from`.
    fn find(&self, key: (u32, u64), from: Nid, wanted: impl Fn(&Md) -> bool) -> Option<Arc<Entry>> {
        let shard = self.matched_shard(key).lock();
        let usable = |e: &&Arc<Entry>| wanted(&e.md) && e.from.is_none_or(|peer| self.same_peer(peer, from));
        shard.get(&key)?.iter().find(usable).cloned()
    }

    // ---- pending operations of this node

    /// Registers a PUT that `peer` will acknowledge or, with `reply_max`, a GET that `peer` will
    /// answer.
    pub(crate) fn expect_answer(self: &Arc<Self>, peer: Nid, reply_max: Option<u32>) -> PendingAnswer {
        let object = self.next_object.fetch_add(1, Ordering::Relaxed);
        let (answer_tx, answer) = oneshot::channel();
        self.pending[shard(object)]
            .lock()
            .add(object, peer, reply_max, answer_tx);
        let handle = LnetHandleWire {
            wh_interface_cookie: self.interface_cookie,
            wh_object_cookie: object,
        };
        PendingAnswer {
            core: self.clone(),
            handle,
            answer,
        }
    }

    /// Records that the message `op` leaves through a router: if the router fails, the operation
    /// fails.
    pub(crate) fn set_router(&self, op: &LnetOp, router: Nid) {
        let handle = match op {
            LnetOp::Put(put) => put.ack_wmd,
            LnetOp::Get(get) => get.return_wmd,
            LnetOp::Ack(_) | LnetOp::Reply(_) => return,
        };
        let object = handle.wh_object_cookie;
        if handle.wh_interface_cookie == self.interface_cookie {
            self.pending[shard(object)].lock().set_router(object, router);
        }
    }

    /// Fails all operations that wait for `peer`, or that were sent through `peer`.
    pub(crate) fn fail_pending(&self, peer: Nid, why: &LnetError) {
        for shard in &self.pending {
            let waiters = shard.lock().remove_peer(peer);
            for waiter in waiters {
                // An error means that the waiter has given up.
                let _ = waiter.send(Err(why.clone()));
            }
        }
    }

    fn complete(&self, from: Nid, handle: LnetHandleWire, answer: Answer) -> Delivery {
        if handle.wh_interface_cookie != self.interface_cookie {
            return Delivery::Dropped("the answer is for a handle of another boot");
        }
        let object = handle.wh_object_cookie;
        let is_sender = |peer| self.same_peer(peer, from);
        let completed = self.pending[shard(object)]
            .lock()
            .complete(object, &answer, is_sender);
        match completed {
            Ok(waiter) => {
                // An error means that the waiter has given up.
                let _ = waiter.send(Ok(answer));
                Delivery::Taken(None)
            }
            Err(why) => Delivery::Dropped(why),
        }
    }

    // ---- messages

    /// Delivers one message to this node. `queued` tells whether earlier messages of the same
    /// connection wait for space in a portal's sink. If so, this message must queue behind them.
    pub(crate) fn receive(&self, msg: Msg, arrival: Arrival, queued: &dyn Fn(u32) -> bool) -> Delivery {
        match msg.op {
            LnetOp::Put(put) => self.receive_put(msg, put, arrival, queued),
            LnetOp::Get(get) => self.receive_get(&msg, get),
            LnetOp::Ack(ack) => self.complete(msg.src, ack.dst_wmd, Answer::Ack(ack.mlength)),
            LnetOp::Reply(reply) => self.complete(msg.src, reply.dst_wmd, Answer::Reply(msg.payload)),
        }
    }

    fn receive_put(
        &self,
        msg: Msg,
        put: LnetPut,
        arrival: Arrival,
        queued: &dyn Fn(u32) -> bool,
    ) -> Delivery {
        let LnetPut {
            ptl_index: portal,
            match_bits,
            hdr_data,
            offset,
            ..
        } = put;
        let (src, dst, len) = (msg.src, msg.dst, msg.payload.len() as u32);
        let ack = |mlength: u32| {
            let dst_wmd = Some(put.ack_wmd).filter(|wmd| !wmd.is_none())?;
            let op = LnetOp::Ack(LnetAck {
                dst_wmd,
                match_bits,
                mlength,
            });
            Some(Msg {
                src: dst,
                dst: src,
                op,
                payload: Payload::new(),
            })
        };
        if portal == LNET_RESERVED_PORTAL && match_bits == LNET_PROTO_PING_MATCHBITS {
            return Delivery::Taken(ack(len));
        }
        let lazy = self.lazy.get(portal as usize).map(ArcSwapOption::load);
        if let Some(lazy) = lazy.as_ref().and_then(|lazy| lazy.as_ref()) {
            let sink = &lazy.sink;
            let message = IncomingPut {
                from: src,
                portal,
                match_bits,
                hdr_data,
                offset,
                payload: msg.payload,
                cpt: self.rotor.choose(
                    &lazy.round_robin,
                    &lazy.sink_cpts,
                    arrival.cpt,
                    src,
                    arrival.routed,
                ),
            };
            let delay = |message| {
                Delivery::Full(Box::new(BlockedPut {
                    sink: sink.clone(),
                    message,
                    answer: ack(len),
                }))
            };
            if queued(portal) {
                return delay(message);
            }
            return match sink.put(message) {
                Ok(()) => Delivery::Taken(ack(len)),
                Err(full) => delay(full.0),
            };
        }
        let Some(entry) = self.find((portal, match_bits), src, |md| matches!(md, Md::Sink { .. })) else {
            return Delivery::Dropped("no buffer is attached for this PUT");
        };
        let Md::Sink { max_len } = entry.md else {
            return Delivery::Dropped("the buffer is not for PUTs");
        };
        if offset > max_len {
            return Delivery::Dropped("the offset is beyond the end of the buffer");
        }
        let mlength = len.min(max_len - offset);
        let payload = msg.payload.slice(0, mlength as usize);
        match entry.push(MdEvent::Put {
            from: src,
            offset,
            payload,
        }) {
            true => Delivery::Taken(ack(mlength)),
            false => Delivery::Dropped("the buffer's event queue is full"),
        }
    }

    fn receive_get(&self, msg: &Msg, get: LnetGet) -> Delivery {
        let reply = |payload| {
            let op = LnetOp::Reply(LnetReply {
                dst_wmd: get.return_wmd,
            });
            Delivery::Taken(Some(Msg {
                src: msg.dst,
                dst: msg.src,
                op,
                payload,
            }))
        };
        if get.ptl_index == LNET_RESERVED_PORTAL && get.match_bits == LNET_PROTO_PING_MATCHBITS {
            let info = PingReply::up(
                LNET_PID_LUSTRE,
                self.nets.sequence(),
                &self.nids(),
                self.nets.snapshot().forwarding,
            );
            return reply(Payload::from(info.build()).slice(0, get.sink_length as usize));
        }
        let Some(entry) = self.find((get.ptl_index, get.match_bits), msg.src, |md| {
            matches!(md, Md::Source(_))
        }) else {
            return Delivery::Dropped("no buffer is attached for this GET");
        };
        let Md::Source(source) = &entry.md else {
            return Delivery::Dropped("the buffer is not for GETs");
        };
        let payload = source.slice(get.src_offset as usize, get.sink_length as usize);
        if payload.len() > wire::LNET_MAX_PAYLOAD as usize {
            return Delivery::Dropped("the GET is longer than a message can be");
        }
        // If the owner's event queue is full, the event is lost; the peer gets its data anyway.
        entry.push(MdEvent::Get {
            from: msg.src,
            len: payload.len() as u32,
        });
        reply(payload)
    }
}

/// A pending ACK or REPLY; dropping it removes the operation.
pub(crate) struct PendingAnswer {
    core: Arc<Core>,
    pub(crate) handle: LnetHandleWire,
    answer: oneshot::Receiver<AnswerResult>,
}

impl PendingAnswer {
    /// Waits for the answer.
    pub(crate) async fn answer(&mut self) -> AnswerResult {
        (&mut self.answer).await.unwrap_or(Err(LnetError::ShutDown))
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        let object = self.handle.wh_object_cookie;
        self.core.pending[shard(object)].lock().remove(object);
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
