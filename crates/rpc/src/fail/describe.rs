//! Descriptions of the numbers of `fail_loc`, for the parameter `fail_points` and the manual.

use super::facts::Server;
use super::table::{Action, Effect, FailPoint, On, POINTS, Pause, Stage};
use wire::Errno;

/// A line for each number: the number, its name, and its effects.
pub(super) fn all() -> String {
    let line = |point: &FailPoint| format!("{:#x} {}: {}\n", point.number, point.name, effects(point));
    POINTS.iter().map(line).collect()
}

fn effects(point: &FailPoint) -> String {
    if point.is_unused() {
        return "no effect, as in Lustre 2.17 with one MDT".to_owned();
    }
    let all: Vec<String> = point.effects.iter().map(effect).collect();
    all.join("; ")
}

fn effect(effect: &Effect) -> String {
    let number = if effect.once { "one" } else { "each" };
    let requests = requests(effect.on);
    let event = match effect.stage {
        Stage::Arrival => "request",
        Stage::SilentHandling | Stage::Handling | Stage::Handled => "request",
        Stage::Reply => "reply",
        Stage::BulkGet => "transfer of data to the server",
        Stage::BulkPut => "transfer of data to the client",
        Stage::SendCallback => "callback of the server",
        Stage::Callback => "callback at the client",
        Stage::Send => "request of the client",
        Stage::Received => "reply at the client",
    };
    let place = match effect.stage {
        Stage::SilentHandling => ", without early replies",
        Stage::Handled => ", after its execution",
        _ => "",
    };
    let what = match effect.action {
        Action::Drop => "is lost".to_owned(),
        Action::Fail(errno) => format!("fails with `{}`", name_of(errno)),
        Action::Wait(pause) => format!("waits {}{place}", length(pause)),
        Action::WaitAndFail(pause, errno) => {
            format!("waits {}, and fails with `{}`", length(pause), name_of(errno))
        }
    };
    let next = match effect.next {
        0 => String::new(),
        next => format!(", and `fail_loc` becomes {next:#x}"),
    };
    format!("{number} {event} {what}{next} ({requests})")
}

/// The name of an errno, without its text.
fn name_of(errno: Errno) -> String {
    let text = errno.to_string();
    text.split(' ').next().unwrap_or_default().to_owned()
}

fn length(pause: Pause) -> String {
    match pause {
        Pause::Ms(ms) => format!("{} s", f64::from(ms) / 1000.0),
        Pause::Value => "`fail_val` s".to_owned(),
        Pause::ValueMs => "`fail_val` ms".to_owned(),
        Pause::Quarters(quarters) => format!("{} times `timeout`", f64::from(quarters) / 4.0),
    }
}

fn requests(on: On) -> String {
    let at = |server| match server {
        Server::Mgs => "the MGS",
        Server::Mdt => "an MDT",
        Server::Ost => "an OST",
    };
    let name = |opc: &u32| format!("`{}`", wire::format::opcode_name(*opc).unwrap_or_default());
    match on {
        On::Opcodes(opcodes) => opcodes.iter().map(name).collect::<Vec<_>>().join(", "),
        On::OpcodeOfValue => "opcode `fail_val`".to_owned(),
        On::All(server) => format!("to {}; with `fail_val`, of this opcode", at(server)),
        On::Others(server) => format!("to {}, except enqueues and `MDS_REINT`", at(server)),
        On::EnqueuesAt(server) => format!("enqueues at {}", at(server)),
        On::Reint(operation) => format!("`MDS_REINT` with operation {operation}"),
        On::Intents => "enqueues with an intent".to_owned(),
        On::Opens => "opens and creates of files".to_owned(),
        On::ExtentLocks => "enqueues of extent locks".to_owned(),
        On::OrphanCleanups => "orphan cleanup of the MDT".to_owned(),
        On::Replays => "replayed requests".to_owned(),
        On::LockReplays => "replayed locks".to_owned(),
        On::FinalPings => "pings that end a recovery".to_owned(),
        On::MayWait => "all except pings, statfs, `OST_CREATE` and `OST_DISCONNECT`".to_owned(),
        On::Everything => "all".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::all;

    /// The table of the manual must have all numbers. With `NACRE_WRITE_MANUAL` set, this test
    /// writes it.
    #[test]
    fn manual_lists_all_numbers() {
        const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/manual/faults.md");
        const HEAD: &str = "| number | name (`OBD_FAIL_`...) | effect |\n|---|---|---|\n";
        let page = std::fs::read_to_string(PAGE).unwrap_or_default();
        let (before, _) = page.split_once(HEAD).unwrap_or((&page, ""));
        let mut expected = format!("{before}{HEAD}");
        for line in all().lines() {
            let (number, rest) = line.split_once(' ').unwrap_or_default();
            let (name, effects) = rest.split_once(": ").unwrap_or_default();
            expected += &format!("| {number} | `{name}` | {effects} |\n");
        }
        if std::env::var_os("NACRE_WRITE_MANUAL").is_some() {
            assert!(std::fs::write(PAGE, &expected).is_ok());
            return;
        }
        assert_eq!(page, expected, "run this test with NACRE_WRITE_MANUAL=1");
    }
}
