//! Requests of a node to other nodes, and the node's counters.
//!
//! A request is a PUT to its service's portal. The reply and the bulk data use their own match
//! bits: the server PUTs the reply, PUTs bulk data to a reading client, and GETs bulk data from a
//! writing client. The client accepts replies and bulk operations only from the node to which it
//! sent the request.

use lnet::{Lnet, MatchEntry, Md, MdEvent, MdHandle, Payload};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wire::{Errno, Nid, SRPC_RDMA_PORTAL, Selftest, SrpcCounters, WireStruct, srpc_portal};

/// The bulk data of a request.
#[derive(Debug)]
pub enum Bulk {
    /// None.
    None,
    /// The server fetches this payload.
    Source(Payload),
    /// The server sends this many bytes.
    Sink(u32),
}

/// A reply and the bulk data received with it.
#[derive(Debug)]
pub struct Reply {
    /// The reply.
    pub message: Selftest,
    /// The received bulk data.
    pub data: Payload,
}

/// The counters of a node.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Requests of this node that failed, except those that timed out.
    pub(crate) errors: AtomicU32,
    /// Requests that this node sent.
    pub(crate) sent: AtomicU32,
    /// Requests that this node received.
    pub(crate) received: AtomicU32,
    /// Received requests without a reply.
    pub(crate) dropped: AtomicU32,
    /// Requests of this node that timed out.
    pub(crate) expired: AtomicU32,
    /// Bytes of bulk data that this node fetched for received requests.
    pub(crate) bulk_get: AtomicU64,
    /// Bytes of bulk data that this node sent for received requests.
    pub(crate) bulk_put: AtomicU64,
}

impl Counters {
    /// The counters in the reply to a statistics request.
    pub(crate) fn to_wire(&self) -> SrpcCounters {
        SrpcCounters {
            errors: self.errors.load(Relaxed),
            rpcs_sent: self.sent.load(Relaxed),
            rpcs_rcvd: self.received.load(Relaxed),
            rpcs_dropped: self.dropped.load(Relaxed),
            rpcs_expired: self.expired.load(Relaxed),
            bulk_get: self.bulk_get.load(Relaxed),
            bulk_put: self.bulk_put.load(Relaxed),
        }
    }
}

/// Sends the requests of one node.
#[derive(Debug)]
pub struct Requester {
    pub(crate) lnet: Arc<Lnet>,
    pub(crate) counters: Counters,
    /// The match bits of the next buffer.
    next_match_bits: AtomicU64,
}

impl Requester {
    pub(crate) fn new(lnet: Arc<Lnet>) -> Requester {
        // A restarted node must use other match bits, because replies to its former requests may
        // still arrive.
        let seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |d| d.as_secs());
        Requester {
            lnet,
            counters: Counters::default(),
            next_match_bits: AtomicU64::new(seconds << 48 | 1),
        }
    }

    /// Attaches a buffer for operations of the node `to`; returns its match bits.
    fn attach(&self, to: Nid, md: Md) -> (u64, MdHandle) {
        let match_bits = self.next_match_bits.fetch_add(1, Relaxed);
        let entry = MatchEntry {
            portal: SRPC_RDMA_PORTAL,
            match_bits,
            from: Some(to),
        };
        (match_bits, self.lnet.attach(entry, md))
    }

    /// Sends a request and waits for its reply and bulk data, at most `limit`; zero: without limit.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`; `EBADMSG` for a malformed reply; `EINVAL` if `message` is no request; otherwise
    /// the error of LNet.
    pub async fn call(
        &self,
        to: Nid,
        message: Selftest,
        bulk: Bulk,
        limit: Duration,
    ) -> Result<Reply, Errno> {
        let exchange = self.exchange(to, message, bulk);
        let result = if limit.is_zero() {
            exchange.await
        } else {
            match tokio::time::timeout(limit, exchange).await {
                Ok(result) => result,
                Err(_) => {
                    self.counters.expired.fetch_add(1, Relaxed);
                    return Err(Errno::ETIMEDOUT);
                }
            }
        };
        if result.is_err() {
            self.counters.errors.fetch_add(1, Relaxed);
        }
        result
    }

    async fn exchange(&self, to: Nid, mut message: Selftest, bulk: Bulk) -> Result<Reply, Errno> {
        let service = message.body.service().ok_or(Errno::EINVAL)?;
        let max_len = wire::SrpcMsg::SIZE as u32;
        let (rpyid, mut reply) = self.attach(to, Md::Sink { max_len });
        let (bulkid, mut sink, _source) = match bulk {
            Bulk::None => (0, None, None),
            Bulk::Sink(max_len) => {
                let (id, sink) = self.attach(to, Md::Sink { max_len });
                (id, Some(sink), None)
            }
            Bulk::Source(payload) => {
                let (id, source) = self.attach(to, Md::Source(payload));
                (id, None, Some(source))
            }
        };
        message.body.set_ids(rpyid, bulkid);
        // The type of a reply is one more than the type of its request.
        let expected = message.body.msg_type() + 1;
        let request = message.build();
        let put = self.lnet.put(
            to,
            srpc_portal(service),
            service.into(),
            0,
            0,
            request.into(),
            false,
        );
        put.await.map_err(|e| e.errno())?;
        self.counters.sent.fetch_add(1, Relaxed);
        let message =
            Selftest::parse(&next_put(&mut reply).await.into_bytes()).map_err(|_| Errno::EBADMSG)?;
        if message.body.msg_type() != expected {
            return Err(Errno::EBADMSG);
        }
        let data = match &mut sink {
            Some(sink) if message.body.status() == Some(0) => next_put(sink).await,
            _ => Payload::new(),
        };
        Ok(Reply { message, data })
    }
}

/// The payload of the next PUT to a buffer.
async fn next_put(buffer: &mut MdHandle) -> Payload {
    loop {
        if let Some(MdEvent::Put { payload, .. }) = buffer.next().await {
            return payload;
        }
    }
}
