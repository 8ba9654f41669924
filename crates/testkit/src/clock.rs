//! The clock of a test.

use std::sync::Arc;
use std::time::SystemTime;

use mdt::WallClock;
use parking_lot::Mutex;
use wire::Time;

/// A clock that may run behind the time of day, or show a fixed time. Clones share the setting.
#[derive(Clone, Default)]
pub struct SettableClock(Arc<Mutex<Setting>>);

#[derive(Clone, Copy)]
enum Setting {
    /// Behind the time of day, in seconds.
    Behind(i64),
    Fixed(Time),
}

impl Default for Setting {
    fn default() -> Setting {
        Setting::Behind(0)
    }
}

impl SettableClock {
    /// Lets the clock run `secs` seconds behind the time of day.
    pub fn set_behind(&self, secs: u64) {
        *self.0.lock() = Setting::Behind(secs.try_into().unwrap());
    }

    /// Stops the clock at a time.
    pub fn set(&self, time: Time) {
        *self.0.lock() = Setting::Fixed(time);
    }

    /// The clock for a node.
    pub fn wall_clock(&self) -> WallClock {
        let setting = self.0.clone();
        WallClock::new(move || match *setting.lock() {
            Setting::Behind(secs) => Time::from(SystemTime::now()).later(-secs),
            Setting::Fixed(time) => time,
        })
    }
}
