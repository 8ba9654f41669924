//! The parameters of lock servers and lock clients, under Lustre's `ldlm.namespaces`.

use crate::client::LockClient;
use crate::server::{LockServer, LockStats};
use params::{Group, Param, Registry, Row, Stats, USECS, Value};
use std::sync::Arc;
use std::time::Duration;

/// Upper bound of `ldlm_enqueue_min`, seconds.
const ENQUEUE_MIN_MAX: u64 = 3600;

impl LockServer {
    /// Registers the server's parameters below `ldlm.namespaces.<name>` until the group is dropped.
    pub fn register_params(self: &Arc<Self>, registry: &Registry) -> Group {
        let mut group = registry.group(format!("ldlm.namespaces.{}", self.name()));
        let read = |show: fn(&LockStats) -> u64| {
            let server = Arc::downgrade(self);
            Param::read_only(move || server.upgrade().map_or(0, |s| show(&s.stats())).to_string())
        };
        let (waits, waiting) = (Arc::downgrade(self), Arc::downgrade(self));
        group
            .add(
                "lock_count",
                read(|s| s.locks as u64).about("locks granted and waiting"),
            )
            .add(
                "lock_waiting",
                Param::gauge(move || waiting.upgrade().map_or(0, |s| s.stats().waiting as u64))
                    .about("locks that wait for others, flocks included"),
            )
            .add(
                "lock_waits",
                Param::read_only(move || {
                    waits
                        .upgrade()
                        .map_or(Value::Text(String::new()), |s| s.wait_stats().into())
                })
                .about("how long locks waited until their grant or a deadlock, flocks included"),
            )
            .add(
                "resource_count",
                read(|s| s.resources as u64).about("resources with locks"),
            )
            .add(
                "lock_timeouts",
                read(|s| s.evictions).about(
                    "clients evicted because they did not cancel a lock in time, or a callback failed",
                ),
            )
            .add(
                "ldlm_enqueue_min",
                self.enqueue_min_param()
                    .about("minimum time that a client has to cancel a revoked lock, seconds"),
            );
        group
    }

    /// The waits for locks, as a `stats` file.
    fn wait_stats(&self) -> Stats {
        Stats {
            since: self.started_at(),
            rows: vec![Row {
                name: "lock_wait",
                unit: USECS,
                sums: self.stats().waits,
                buckets: None,
            }],
        }
    }

    fn enqueue_min_param(self: &Arc<Self>) -> Param {
        let (shown, server) = (Arc::downgrade(self), Arc::downgrade(self));
        Param::read_write(
            move || {
                shown
                    .upgrade()
                    .map_or(0, |s| s.enqueue_min().as_secs())
                    .to_string()
            },
            move |value| {
                let seconds = value
                    .trim()
                    .parse()
                    .ok()
                    .filter(|s| (1..=ENQUEUE_MIN_MAX).contains(s));
                let seconds = seconds.ok_or_else(|| format!("expected 1 to {ENQUEUE_MIN_MAX} seconds"))?;
                if let Some(server) = server.upgrade() {
                    server.set_enqueue_min(Duration::from_secs(seconds));
                }
                Ok(())
            },
        )
    }
}

impl LockClient {
    /// Registers the cache's parameters below `ldlm.namespaces.<name>` until the group is dropped.
    pub fn register_params(self: &Arc<Self>, registry: &Registry, name: &str) -> Group {
        let mut group = registry.group(format!("ldlm.namespaces.{name}"));
        let read = |show: fn(&LockClient) -> usize| {
            let client = Arc::downgrade(self);
            Param::read_only(move || client.upgrade().map_or(0, |c| show(&c)).to_string())
        };
        let write = |show: fn(&LockClient) -> usize, set: fn(&LockClient, &str) -> Result<(), String>| {
            let (shown, client) = (Arc::downgrade(self), Arc::downgrade(self));
            Param::read_write(
                move || shown.upgrade().map_or(0, |c| show(&c)).to_string(),
                move |value| client.upgrade().map_or(Ok(()), |c| set(&c, value.trim())),
            )
        };
        let lru_size = write(LockClient::lru_size, set_lru_size);
        let lru_max_age = write(|c| c.lru_max_age().as_millis() as usize, set_lru_max_age);
        group
            .add(
                "lock_count",
                read(LockClient::lock_count).about("locks of this client"),
            )
            .add(
                "lock_unused_count",
                read(LockClient::unused_count).about("cached locks that are not in use"),
            )
            .add(
                "resource_count",
                read(LockClient::resource_count).about("resources that this client has locks on"),
            )
            .add(
                "lru_size",
                lru_size.about("limit of unused cached locks; 'clear' cancels all of them"),
            )
            .add(
                "lru_max_age",
                lru_max_age.about("how long unused locks stay cached, milliseconds"),
            );
        group
    }
}

fn set_lru_size(client: &LockClient, value: &str) -> Result<(), String> {
    match value {
        "clear" => client.cancel_unused(),
        _ => client.set_lru_size(
            value
                .parse()
                .map_err(|_| "expected a number of locks, or 'clear'".to_owned())?,
        ),
    }
    Ok(())
}

fn set_lru_max_age(client: &LockClient, value: &str) -> Result<(), String> {
    let millis = value.parse().map_err(|_| "expected milliseconds".to_owned())?;
    client.set_lru_max_age(Duration::from_millis(millis));
    Ok(())
}
