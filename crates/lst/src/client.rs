//! The client's side of tests: each unit of a run sends one request after the other to its destination, until it has done
//! so as often as it was told, is stopped, or fails.

use crate::pattern;
use crate::run::{Run, Unit};
use crate::spec::{Brw, What};
use crate::srpc::{Answer, Bulk, Srpc};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wire::{Errno, Nid, Selftest, SrpcBody, SrpcBrwReqst, SrpcPingReqst};

/// `LST_PING_TEST_MAGIC`
pub(crate) const PING_MAGIC: u32 = 0xbabe_face;
/// After a request that failed, so that failing at once is not done as often as it can be.
const PAUSE: Duration = Duration::from_millis(100);

/// What the units of a node share.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) srpc: Arc<Srpc>,
    pub(crate) rpc_timeout: Duration,
    /// Bulks that are still to be damaged.
    pub(crate) inject: AtomicU32,
}

impl Client {
    /// Begins a run: each unit on the partition of its destination.
    pub(crate) fn start(self: &Arc<Self>, run: &Arc<Run>) {
        let cpts = self.srpc.lnet.cpts();
        for &destination in &run.spec.destinations {
            let cpt = cpts.get(cpts.of_nid(destination.0));
            for _ in 0..run.spec.concurrency {
                let (client, unit) = (self.clone(), run.unit());
                let task = cpt.spawn(async move { client.repeat(unit, destination).await });
                run.keep(task.abort_handle());
            }
        }
    }

    async fn repeat(&self, unit: Unit, destination: Nid) {
        let mut left = unit.spec.loops;
        let mut sequence = 0_u32;
        while !unit.stopping() && left != Some(0) {
            left = left.map(|n| n - 1);
            sequence = sequence.wrapping_add(1);
            let done = match unit.spec.what {
                What::Ping => self.ping(&unit, destination, sequence).await,
                What::Brw(brw) => self.brw(&unit, destination, brw).await,
            };
            let Err(why) = done else { continue };
            if unit.stopping() {
                break;
            }
            let errors = match unit.spec.what {
                What::Ping => &unit.errors.ping,
                What::Brw(_) => &unit.errors.brw,
            };
            errors.fetch_add(1, Relaxed);
            lnet::warn_seldom!(to = %destination, "a request of a test failed: {why}");
            if unit.spec.stop_on_error {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn call(&self, unit: &Unit, to: Nid, body: SrpcBody, bulk: Bulk) -> Result<Answer, Errno> {
        let answer = self
            .srpc
            .call(to, Selftest::new(unit.spec.feats, body), bulk, self.rpc_timeout)
            .await?;
        match answer.message.body.status() {
            Some(0) => Ok(answer),
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
        let answer = self.call(unit, to, ping.into(), Bulk::None).await?;
        match answer.message.body {
            SrpcBody::PingReply(reply) if (reply.pnr_magic, reply.pnr_seq) == (PING_MAGIC, sequence) => {
                Ok(())
            }
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
            Bulk::Source(self.data(brw.len).into())
        } else {
            Bulk::Sink(brw.len)
        };
        let answer = self.call(unit, to, request.into(), bulk).await?;
        let whole = brw.write || answer.data.len() == brw.len as usize;
        if !whole || !pattern::is_good(&answer.data, brw.offset, brw.check) {
            return Err(Errno::EBADMSG);
        }
        Ok(())
    }

    /// The data of a bulk that this node sends.
    pub(crate) fn data(&self, len: u32) -> bytes::Bytes {
        let inject = |left: u32| left.checked_sub(1);
        if self.inject.load(Relaxed) > 0 && self.inject.fetch_update(Relaxed, Relaxed, inject).is_ok() {
            return pattern::damaged(len as usize);
        }
        pattern::good(len as usize)
    }
}
