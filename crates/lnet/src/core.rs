//! The protocol's state of one node: what is attached to its portals, and which of its own PUTs and GETs wait for an
//! ACK or a REPLY. It takes messages and gives back answers; it holds no socket, task or clock.
//!
//! Tables are sharded, so that partitions do not meet on a lock; what seldom changes (networks, services) is looked at
//! without one.

use crate::message::Msg;
use crate::nets::Current;
use crate::portals::{Attached, Entry, Incoming, Match, Md, MdEvent, PutSink};
use crate::rotor::{PortalRotor, Rotor, Wheels};
use crate::{LnetError, Payload};
use arc_swap::ArcSwapOption;
use cpt::CptId;
use foldhash::HashMap;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;
use wire::frame::{LnetMsg, PingReply};
use wire::{
    LNET_PID_LUSTRE, LNET_PROTO_PING_MATCHBITS, LNET_RESERVED_PORTAL, LnetAck, LnetGet, LnetHandleWire,
    LnetPut, LnetReply, Nid,
};

const SHARDS: usize = 64;
/// Portals that exist in LNet.
const PORTALS: usize = 64;

type Shard = Mutex<HashMap<(u32, u64), Vec<Arc<Entry>>>>;

/// One node's portals and handles.
pub(crate) struct Core {
    /// Tells this boot of the stack from others in the handles that peers echo.
    interface_cookie: u64,
    next_object: AtomicU64,
    pub(crate) nets: Current,
    pub(crate) rotor: Rotor,
    cpts: usize,
    lazy: Vec<ArcSwapOption<Lazy>>,
    matched: Vec<Shard>,
    waiting: Vec<Mutex<HashMap<u64, Waiting>>>,
}

/// A lazy portal that is served.
struct Lazy {
    sink: Arc<dyn PutSink>,
    wheels: Wheels,
    /// Where its requests can be queued.
    on: Vec<CptId>,
}

/// Where and how a message reached this node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived {
    /// The partition that received it.
    pub(crate) cpt: CptId,
    /// Whether a router brought it.
    pub(crate) routed: bool,
}

/// A PUT or GET of ours that is not answered yet.
struct Waiting {
    peer: Nid,
    /// The router that took it; what it loses nobody answers.
    via: Option<Nid>,
    /// Longest REPLY; `None` waits for an ACK.
    reply_max: Option<u32>,
    tell: oneshot::Sender<Result<Answer, LnetError>>,
}

/// How a PUT or GET of ours ended.
#[derive(Debug)]
pub(crate) enum Answer {
    /// So many bytes of a PUT were taken.
    Ack(u32),
    /// The data that a GET asked for.
    Reply(Payload),
}

/// What became of a message.
pub(crate) enum Verdict {
    /// It was taken; perhaps there is an answer to send.
    Taken(Option<Msg>),
    /// It is for a lazy portal whose sink is full: offer it again, and only then send the answer.
    Full(Box<Delayed>),
    /// Nobody wants it; why.
    Dropped(&'static str),
}

/// A message that waits for room in a sink.
pub(crate) struct Delayed {
    pub(crate) sink: Arc<dyn PutSink>,
    pub(crate) message: Incoming,
    pub(crate) answer: Option<Msg>,
}

impl Delayed {
    /// Waits until the sink takes the message; gives back the answer to send.
    pub(crate) async fn deliver(self) -> Option<Msg> {
        let mut message = self.message;
        loop {
            self.sink.room().await;
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

/// Spreads numbers that differ in few bits.
fn shard(n: u64) -> usize {
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS
}

impl Core {
    /// For so many partitions.
    pub(crate) fn new(interface_cookie: u64, cpts: usize, forwarding: bool, rotor: PortalRotor) -> Core {
        Core {
            interface_cookie,
            next_object: AtomicU64::new(1),
            nets: Current::new(cpts, forwarding),
            rotor: Rotor::new(rotor),
            cpts,
            lazy: (0..PORTALS).map(|_| ArcSwapOption::empty()).collect(),
            matched: (0..SHARDS).map(|_| Mutex::default()).collect(),
            waiting: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// This node's NIDs but `0@lo`, the primary one first.
    pub(crate) fn nids(&self) -> Vec<Nid> {
        self.nets.now().nis.iter().map(|ni| ni.nid).collect()
    }

    pub(crate) fn is_local(&self, nid: Nid) -> bool {
        self.nets.now().is_local(nid)
    }

    /// Whether both are the same node: all NIDs of this node are one.
    fn same_peer(&self, a: Nid, b: Nid) -> bool {
        a == b || (self.is_local(a) && self.is_local(b))
    }

    // ---- lazy portals

    pub(crate) fn serve(&self, portal: u32, sink: Arc<dyn PutSink>) {
        if let Some(slot) = self.lazy.get(portal as usize) {
            let on = sink.cpts().filter(|on| !on.is_empty());
            slot.store(Some(Arc::new(Lazy {
                on: on.unwrap_or_else(|| (0..self.cpts).map(CptId).collect()),
                wheels: Wheels::new(self.cpts),
                sink,
            })));
        }
    }

    pub(crate) fn unserve(&self, portal: u32) {
        if let Some(slot) = self.lazy.get(portal as usize) {
            slot.store(None);
        }
    }

    // ---- matched buffers

    pub(crate) fn attach(self: &Arc<Self>, me: Match, md: Md) -> Attached {
        let key = (me.portal, me.match_bits);
        let entry = Entry::new(me.from, md);
        self.matched_shard(key)
            .lock()
            .entry(key)
            .or_default()
            .push(entry.clone());
        Attached {
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

    fn matched_shard(&self, key: (u32, u64)) -> &Shard {
        &self.matched[shard(key.1 ^ u64::from(key.0) << 32)]
    }

    /// The first buffer, in the order of attaching, that is of the wanted kind and open to `from`.
    fn find(&self, key: (u32, u64), from: Nid, wanted: impl Fn(&Md) -> bool) -> Option<Arc<Entry>> {
        let shard = self.matched_shard(key).lock();
        let open = |e: &&Arc<Entry>| wanted(&e.md) && e.from.is_none_or(|peer| self.same_peer(peer, from));
        shard.get(&key)?.iter().find(open).cloned()
    }

    // ---- what this node waits for

    /// Remembers that `peer` will acknowledge a PUT, or, with `reply_max`, answer a GET.
    pub(crate) fn expect(self: &Arc<Self>, peer: Nid, reply_max: Option<u32>) -> Expected {
        let object = self.next_object.fetch_add(1, Ordering::Relaxed);
        let (tell, answer) = oneshot::channel();
        self.waiting[shard(object)].lock().insert(
            object,
            Waiting {
                peer,
                via: None,
                reply_max,
                tell,
            },
        );
        let handle = LnetHandleWire {
            wh_interface_cookie: self.interface_cookie,
            wh_object_cookie: object,
        };
        Expected {
            core: self.clone(),
            handle,
            answer,
        }
    }

    /// The message `op` leaves by a router: if that is lost, so is the answer.
    pub(crate) fn leaves_by(&self, op: &LnetMsg, router: Nid) {
        let handle = match op {
            LnetMsg::Put(put) => put.ack_wmd,
            LnetMsg::Get(get) => get.return_wmd,
            LnetMsg::Ack(_) | LnetMsg::Reply(_) => return,
        };
        let object = handle.wh_object_cookie;
        if handle.wh_interface_cookie == self.interface_cookie
            && let Some(waiting) = self.waiting[shard(object)].lock().get_mut(&object)
        {
            waiting.via = Some(router);
        }
    }

    /// `peer` is gone: what it would have answered, or brought, fails now instead of in time.
    pub(crate) fn peer_lost(&self, peer: Nid, why: &LnetError) {
        for shard in &self.waiting {
            let lost: Vec<Waiting> = shard
                .lock()
                .extract_if(|_, w| w.peer == peer || w.via == Some(peer))
                .map(|(_, w)| w)
                .collect();
            for waiting in lost {
                // An error means that nobody waits any more.
                let _ = waiting.tell.send(Err(why.clone()));
            }
        }
    }

    fn answered(&self, from: Nid, handle: LnetHandleWire, answer: Answer) -> Verdict {
        if handle.wh_interface_cookie != self.interface_cookie {
            return Verdict::Dropped("answers a handle of another boot");
        }
        let mut shard = self.waiting[shard(handle.wh_object_cookie)].lock();
        let Some(waiting) = shard.get(&handle.wh_object_cookie) else {
            return Verdict::Dropped("answers what nobody waits for");
        };
        if !self.same_peer(waiting.peer, from) {
            return Verdict::Dropped("answers what another peer was asked");
        }
        match (&answer, waiting.reply_max) {
            (Answer::Ack(_), None) => {}
            (Answer::Reply(payload), Some(max)) if payload.len() <= max as usize => {}
            _ => return Verdict::Dropped("is not the answer that was asked for"),
        }
        if let Some(waiting) = shard.remove(&handle.wh_object_cookie) {
            // An error means that nobody waits any more.
            let _ = waiting.tell.send(Ok(answer));
        }
        Verdict::Taken(None)
    }

    // ---- messages

    /// Takes one message that reached this node. Where `queued` says that earlier messages wait for a lazy portal, this one
    /// has to wait behind them.
    pub(crate) fn receive(&self, msg: Msg, arrived: Arrived, queued: &dyn Fn(u32) -> bool) -> Verdict {
        match msg.op {
            LnetMsg::Put(put) => self.receive_put(msg, put, arrived, queued),
            LnetMsg::Get(get) => self.receive_get(&msg, get),
            LnetMsg::Ack(ack) => self.answered(msg.src, ack.dst_wmd, Answer::Ack(ack.mlength)),
            LnetMsg::Reply(reply) => self.answered(msg.src, reply.dst_wmd, Answer::Reply(msg.payload)),
        }
    }

    fn receive_put(&self, msg: Msg, put: LnetPut, arrived: Arrived, queued: &dyn Fn(u32) -> bool) -> Verdict {
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
            let op = LnetMsg::Ack(LnetAck {
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
            return Verdict::Taken(ack(len));
        }
        let lazy = self.lazy.get(portal as usize).map(ArcSwapOption::load);
        if let Some(lazy) = lazy.as_ref().and_then(|lazy| lazy.as_ref()) {
            let sink = &lazy.sink;
            let message = Incoming {
                from: src,
                portal,
                match_bits,
                hdr_data,
                offset,
                payload: msg.payload,
                cpt: self
                    .rotor
                    .place(&lazy.wheels, &lazy.on, arrived.cpt, src, arrived.routed),
            };
            let delay = |message| {
                Verdict::Full(Box::new(Delayed {
                    sink: sink.clone(),
                    message,
                    answer: ack(len),
                }))
            };
            if queued(portal) {
                return delay(message);
            }
            return match sink.put(message) {
                Ok(()) => Verdict::Taken(ack(len)),
                Err(full) => delay(full.0),
            };
        }
        let Some(entry) = self.find((portal, match_bits), src, |md| matches!(md, Md::Sink { .. })) else {
            return Verdict::Dropped("no buffer is attached for this PUT");
        };
        let Md::Sink { max_len } = entry.md else {
            return Verdict::Dropped("not a buffer for PUTs");
        };
        if offset > max_len {
            return Verdict::Dropped("begins beyond its buffer's end");
        }
        let mlength = len.min(max_len - offset);
        let payload = msg.payload.slice(0, mlength as usize);
        match entry.push(MdEvent::Put {
            from: src,
            offset,
            payload,
        }) {
            true => Verdict::Taken(ack(mlength)),
            false => Verdict::Dropped("its buffer is used up"),
        }
    }

    fn receive_get(&self, msg: &Msg, get: LnetGet) -> Verdict {
        let reply = |payload| {
            let op = LnetMsg::Reply(LnetReply {
                dst_wmd: get.return_wmd,
            });
            Verdict::Taken(Some(Msg {
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
                self.nets.now().forwarding,
            );
            return reply(Payload::from(info.build()).slice(0, get.sink_length as usize));
        }
        let Some(entry) = self.find((get.ptl_index, get.match_bits), msg.src, |md| {
            matches!(md, Md::Source(_))
        }) else {
            return Verdict::Dropped("no buffer is attached for this GET");
        };
        let Md::Source(source) = &entry.md else {
            return Verdict::Dropped("not a buffer for GETs");
        };
        let payload = source.slice(get.src_offset as usize, get.sink_length as usize);
        if payload.len() > wire::LNET_MAX_PAYLOAD as usize {
            return Verdict::Dropped("asks for more than a message carries");
        }
        // An owner who does not count what was fetched hears less of it; the peer gets its data all the same.
        entry.push(MdEvent::Got {
            from: msg.src,
            len: payload.len() as u32,
        });
        reply(payload)
    }
}

/// An ACK or REPLY that is waited for; dropping it forgets it.
pub(crate) struct Expected {
    core: Arc<Core>,
    pub(crate) handle: LnetHandleWire,
    answer: oneshot::Receiver<Result<Answer, LnetError>>,
}

impl Expected {
    /// Waits for it.
    pub(crate) async fn answer(&mut self) -> Result<Answer, LnetError> {
        (&mut self.answer).await.unwrap_or(Err(LnetError::ShutDown))
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let object = self.handle.wh_object_cookie;
        self.core.waiting[shard(object)].lock().remove(&object);
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
