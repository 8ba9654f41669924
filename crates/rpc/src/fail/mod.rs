//! Fault injection with Lustre's numbers: `fail_loc` selects a number, and `fail_val` is its
//! argument. So Lustre's recovery tests can drive Nacre (docs/manual/faults.md).
//!
//! [`FailPoints`] belongs to one [`crate::Ptlrpc`]. The layer asks it at each step of a request.
//! While `fail_loc` is 0, a step costs one relaxed load. [`table`] has the numbers, [`state`] the
//! rules for repeated failures.

mod describe;
mod facts;
mod state;
mod table;

use crate::RpcConfig;
use params::{Param, ParamGuard, Registry};
use parking_lot::Mutex;
use state::{FLAGS, FailState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use table::{Action, Pause};
use tokio::sync::Notify;
use wire::{Errno, Message, PtlrpcBody};

pub(crate) use facts::{Facts, Server};
pub(crate) use table::Stage;

/// The faults that the administrator of a node injects.
#[derive(Debug, Default)]
pub struct FailPoints {
    /// Whether `fail_loc` is not 0.
    armed: AtomicBool,
    state: Mutex<FailState>,
    /// Notified when `fail_loc` becomes 0, which ends all pauses.
    cleared: Notify,
    /// `obd_timeout`, from which the length of some pauses follows.
    obd_timeout: Duration,
}

/// The value of a text: decimal, or hexadecimal after `0x`.
fn parse(text: &str) -> Result<u32, String> {
    let text = text.trim();
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // The standard library would accept a sign.
    let value = digits
        .chars()
        .all(|c| c.is_digit(radix))
        .then(|| u32::from_str_radix(digits, radix).ok());
    value.flatten().ok_or_else(|| {
        format!("expected a decimal number, or a hexadecimal one after 0x, up to 0xffffffff; found '{text}'")
    })
}

impl FailPoints {
    /// No faults; pauses depend on the configuration.
    pub(crate) fn new(cfg: &RpcConfig) -> Arc<FailPoints> {
        Arc::new(FailPoints {
            obd_timeout: cfg.obd_timeout,
            ..FailPoints::default()
        })
    }

    /// Registers `fail_loc`, `fail_val` and `fail_points`.
    pub(crate) fn register(self: &Arc<FailPoints>, registry: &Registry) -> [ParamGuard; 3] {
        let (shown, set) = (self.clone(), self.clone());
        let loc = Param::read_write(
            move || shown.state.lock().loc().to_string(),
            move |text| set.set_loc(parse(text)?),
        );
        let (shown, set) = (self.clone(), self.clone());
        let val = Param::read_write(
            move || shown.state.lock().val().to_string(),
            move |text| {
                set.state.lock().set_val(parse(text)?);
                Ok(())
            },
        );
        [
            registry.register(
                "fail_loc",
                loc.about(
                    "the injected fault: one of Lustre's numbers, with bits that select its uses; 0: none",
                ),
            ),
            registry.register("fail_val", val.about("the argument of the injected fault")),
            registry.register(
                "fail_points",
                Param::read_only(describe::all)
                    .about("the numbers that `fail_loc` takes, with their effects"),
            ),
        ]
    }

    /// Sets `fail_loc`.
    ///
    /// # Errors
    ///
    /// A text for the user: Nacre does not implement the number, or a bit has no meaning.
    pub fn set_loc(&self, loc: u32) -> Result<(), String> {
        if loc & !(FLAGS | 0xffff) != 0 {
            return Err(format!(
                "fail_loc={loc:#x}: the bits {:#x} have no meaning",
                loc & !(FLAGS | 0xffff)
            ));
        }
        let number = (loc & 0xffff) as u16;
        if loc != 0 {
            let point = table::find(number).ok_or_else(|| {
                format!("fail_loc={loc:#x}: Nacre does not implement the number {number:#x}; `lctl get_param fail_points` lists those that it does")
            })?;
            let name = point.name;
            match point.is_unused() {
                true => tracing::warn!(
                    "fail_loc={loc:#x} (OBD_FAIL_{name}) has no effect, as in Lustre 2.17 with one MDT"
                ),
                false => tracing::warn!("fail_loc={loc:#x}: injecting OBD_FAIL_{name}"),
            }
        }
        {
            let mut state = self.state.lock();
            state.set_loc(loc);
            // With the lock held, so that concurrent settings store both values in one order.
            self.armed.store(loc != 0, Ordering::Relaxed);
        }
        if loc == 0 {
            self.cleared.notify_waiters();
        }
        Ok(())
    }

    /// Sets `fail_val`.
    pub fn set_val(&self, val: u32) {
        self.state.lock().set_val(val);
    }

    /// The value of `fail_loc`.
    pub fn loc(&self) -> u32 {
        self.state.lock().loc()
    }

    /// Whether a fault is selected.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// The action of the selected number on a request at a stage, if it concerns the request.
    fn action(&self, stage: Stage, facts: &Facts) -> Option<(Action, u32)> {
        let mut state = self.state.lock();
        let (point, val) = (table::find(state.number())?, state.val());
        let (effect, action) = point.effect(stage, facts, val)?;
        if !state.fails(effect.once) {
            return None;
        }
        if effect.next != 0 {
            state.set_loc(effect.next);
        }
        drop(state);
        let (name, opc) = (point.name, facts.opc);
        lnet::warn_rate_limited!(opc, ?stage, ?action, "fail_loc: OBD_FAIL_{name}");
        Some((action, val))
    }

    /// Whether the selected number loses a request, reply or callback of which only the body
    /// counts. Waits first as long as the number delays it.
    pub(crate) async fn loses(&self, stage: Stage, body: &PtlrpcBody) -> bool {
        if !self.is_armed() {
            return false;
        }
        let facts = Facts::of(None, body, &Message::default());
        self.inject(stage, &facts).await == Ok(true)
    }

    /// Injects a fault at a stage of a request. `Ok(true)`: the stage does not take place.
    ///
    /// # Errors
    ///
    /// The error with which the request fails.
    pub(crate) async fn inject(&self, stage: Stage, facts: &Facts) -> Result<bool, Errno> {
        if !self.is_armed() {
            return Ok(false);
        }
        let Some((action, val)) = self.action(stage, facts) else {
            return Ok(false);
        };
        match action {
            Action::Drop => Ok(true),
            Action::Fail(errno) => Err(errno),
            Action::Wait(pause) => {
                self.pause(pause, val).await;
                Ok(false)
            }
            Action::WaitAndFail(pause, errno) => {
                self.pause(pause, val).await;
                Err(errno)
            }
        }
    }

    /// Waits for the length of the pause, or until `fail_loc` is 0.
    async fn pause(&self, pause: Pause, val: u32) {
        let length = match pause {
            Pause::Ms(ms) => Duration::from_millis(ms.into()),
            Pause::Value => Duration::from_secs(val.into()),
            Pause::ValueMs => Duration::from_millis(val.into()),
            Pause::Quarters(quarters) => self.obd_timeout * quarters / 4,
        };
        let cleared = self.cleared.notified();
        if self.is_armed() {
            tokio::select! {
                biased;
                () = cleared => {}
                () = tokio::time::sleep(length) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Facts, FailPoints, Server, Stage, parse};
    use crate::RpcConfig;
    use std::time::Duration;
    use tokio::time::Instant;
    use wire::{Errno, Message, PtlrpcBody};

    /// The result of a stage of a request to an MDT.
    async fn inject(fail: &FailPoints, stage: Stage, opc: u32) -> Result<bool, Errno> {
        let body = PtlrpcBody {
            pb_opc: opc,
            ..PtlrpcBody::default()
        };
        let facts = Facts::of(Server::Mdt, &body, &Message::default());
        fail.inject(stage, &facts).await
    }

    #[test]
    fn numbers_have_lustres_forms_and_unknown_ones_are_refused() {
        assert_eq!(parse("0x80000119\n"), Ok(0x8000_0119));
        assert_eq!(parse("281"), Ok(0x119));
        for refused in ["0x1ffffffff", "-1", "+1", "0x+1", "", "0x"] {
            assert!(parse(refused).is_err(), "{refused}");
        }
        let fail = FailPoints::new(&RpcConfig::default());
        assert_eq!(fail.set_loc(0x8000_0119), Ok(()));
        let unknown = fail.set_loc(0x1701).unwrap_err();
        assert!(
            unknown.contains("0x1701") && unknown.contains("does not implement"),
            "{unknown}"
        );
        assert!(fail.set_loc(0x0001_0119).is_err());
        assert_eq!(fail.loc(), 0x8000_0119, "a refused value changes nothing");
    }

    #[tokio::test]
    async fn requests_and_replies_are_lost_by_number() {
        let fail = FailPoints::new(&RpcConfig::default());
        assert_eq!(inject(&fail, Stage::Arrival, wire::MDS_CLOSE).await, Ok(false));
        // Lustre loses only one request, even without the bit for that.
        fail.set_loc(0x115).unwrap();
        assert_eq!(inject(&fail, Stage::Arrival, wire::MDS_REINT).await, Ok(false));
        assert_eq!(inject(&fail, Stage::Arrival, wire::MDS_CLOSE).await, Ok(true));
        assert_eq!(inject(&fail, Stage::Arrival, wire::MDS_CLOSE).await, Ok(false));
        fail.set_loc(0x15a).unwrap();
        for _ in 0..3 {
            assert_eq!(inject(&fail, Stage::Reply, wire::MDS_REINT).await, Ok(true));
        }
        fail.set_val(wire::MDS_SYNC);
        fail.set_loc(0x8000_0123).unwrap();
        assert_eq!(inject(&fail, Stage::Arrival, wire::MDS_REINT).await, Ok(false));
        assert_eq!(inject(&fail, Stage::Arrival, wire::MDS_SYNC).await, Ok(true));
        fail.set_loc(0x103).unwrap();
        let refused = inject(&fail, Stage::Handling, wire::MDS_GETATTR).await;
        assert_eq!(refused, Err(Errno::ENOMEM));
    }

    #[tokio::test(start_paused = true)]
    async fn pause_ends_early_when_fail_loc_is_cleared() {
        let fail = FailPoints::new(&RpcConfig::default());
        fail.set_val(7000);
        fail.set_loc(0x50a).unwrap();
        let begin = Instant::now();
        assert_eq!(inject(&fail, Stage::Handling, wire::MDS_REINT).await, Ok(false));
        assert_eq!(begin.elapsed(), Duration::from_secs(7));
        let cleared = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            fail.set_loc(0).unwrap();
        };
        let (paused, ()) = tokio::join!(inject(&fail, Stage::Handling, wire::MDS_REINT), cleared);
        assert_eq!((paused, begin.elapsed()), (Ok(false), Duration::from_secs(8)));
    }
}
