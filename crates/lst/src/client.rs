//! The client side of tests: each test unit sends one request after the other to its destination. A
//! unit ends after `loops` requests, when the test is stopped, or at the first error if
//! `stop_on_error` is set.

use crate::pattern;
use crate::run::{Run, Unit};
use crate::spec::{Brw, Operation};
use crate::srpc::{Bulk, Reply, Requester};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wire::{Errno, Nid, Selftest, SrpcBody, SrpcBrwReqst, SrpcPingReqst};

/// Magic of ping requests and replies (`LST_PING_TEST_MAGIC`).
pub(crate) const PING_MAGIC: u32 = 0xbabe_face;
/// Pause after a failed request, so that a failing unit does not spin.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The state shared by the test units of a node.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) srpc: Arc<Requester>,
    /// Time limit of a test request; zero: none.
    pub(crate) rpc_timeout: Duration,
    /// Number of bulk transfers still to corrupt (`brw_inject_errors`).
    pub(crate) corrupt_next: AtomicU32,
}

impl Client {
    /// Starts the units of a run, each on the CPU partition of its destination.
    pub(crate) fn start(self: &Arc<Self>, run: &Arc<Run>) {
        let cpts = self.srpc.lnet.cpts();
        for &destination in &run.spec.destinations {
            let cpt = cpts.get(cpts.of_nid(destination.0));
            for _ in 0..run.spec.concurrency {
                let (client, unit) = (self.clone(), run.create_unit());
                let task = cpt.spawn(async move { client.send_requests(unit, destination).await });
                run.add_task(task.abort_handle());
            }
        }
    }

    /// Sends the requests of a unit.
    async fn send_requests(&self, unit: Unit, destination: Nid) {
        let mut loops_left = unit.spec.loops;
        let mut sequence = 0_u32;
        while !unit.is_stopping() && loops_left != Some(0) {
            loops_left = loops_left.map(|n| n - 1);
            sequence = sequence.wrapping_add(1);
            let result = match unit.spec.operation {
                Operation::Ping => self.ping(&unit, destination, sequence).await,
                Operation::Brw(brw) => self.brw(&unit, destination, brw).await,
            };
            let Err(error) = result else { continue };
            if unit.is_stopping() {
                break;
            }
            let errors = match unit.spec.operation {
                Operation::Ping => &unit.errors.ping,
                Operation::Brw(_) => &unit.errors.brw,
            };
            errors.fetch_add(1, Relaxed);
            lnet::warn_rate_limited!(to = %destination, "test request failed: {error}");
            if unit.spec.stop_on_error {
                break;
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Sends a request; a reply with a status other than 0 is an error.
    async fn call(&self, unit: &Unit, to: Nid, body: SrpcBody, bulk: Bulk) -> Result<Reply, Errno> {
        let reply = self
            .srpc
            .call(to, Selftest::new(unit.spec.feats, body), bulk, self.rpc_timeout)
            .await?;
        match reply.message.body.status() {
            Some(0) => Ok(reply),
            Some(status) => Err(Errno(status as i32)),
            None => Err(Errno::EBADMSG),
        }
    }

    async fn ping(&self, unit: &Unit, to: Nid, sequence: u32) -> Result<(), Errno> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ping = SrpcPingReqst {
            pnr_magic: PING_MAGIC,
            pnr_seq: sequence,
            pnr_time_sec: now.as_secs(),
            pnr_time_nsec: now.subsec_nanos().into(),
            ..SrpcPingReqst::default()
        };
        let reply = self.call(unit, to, ping.into(), Bulk::None).await?;
        match reply.message.body {
            SrpcBody::PingReply(pong) if (pong.pnr_magic, pong.pnr_seq) == (PING_MAGIC, sequence) => Ok(()),
            _ => Err(Errno::EBADMSG),
        }
    }

    async fn brw(&self, unit: &Unit, to: Nid, brw: Brw) -> Result<(), Errno> {
        let request = SrpcBrwReqst {
            brw_rw: if brw.write {
                wire::LST_BRW_WRITE
            } else {
                wire::LST_BRW_READ
            },
            brw_len: brw.len,
            brw_flags: brw.flags,
            ..SrpcBrwReqst::default()
        };
        let bulk = if brw.write {
            Bulk::Source(self.bulk_data(brw.len).into())
        } else {
            Bulk::Sink(brw.len)
        };
        let reply = self.call(unit, to, request.into(), bulk).await?;
        let complete = brw.write || reply.data.len() == brw.len as usize;
        if !complete || !pattern::matches(&reply.data, brw.offset, brw.check) {
            return Err(Errno::EBADMSG);
        }
        Ok(())
    }

    /// The data of a bulk transfer that this node sends, of `len` bytes. Corrupts the first
    /// `brw_inject_errors` transfers.
    pub(crate) fn bulk_data(&self, len: u32) -> bytes::Bytes {
        let decrement = |left: u32| left.checked_sub(1);
        if self.corrupt_next.load(Relaxed) > 0
            && self
                .corrupt_next
                .fetch_update(Relaxed, Relaxed, decrement)
                .is_ok()
        {
            return pattern::corrupted_pattern(len as usize);
        }
        pattern::pattern(len as usize)
    }
}
