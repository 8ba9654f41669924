//! `job_stats`: statistics by job, as YAML in Lustre's format.

use std::fmt::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{KeyStats, Row, Sums};

/// Width of the names of a job's rows, with the colon.
const NAME_WIDTH: usize = 16;

/// Writes the statistics of each key in the format of `job_stats`, with `name` and `key_name` in
/// place of `job_stats` and `job_id`. As in Lustre, a job's snapshot time is the time of its last
/// operation, and all operations have a row.
pub(crate) fn write(
    name: &str,
    key_name: &str,
    jobs: &[KeyStats<String>],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "{name}:")?;
    for job in jobs {
        let elapsed = job.last.duration_since(job.first).unwrap_or_default();
        let key_name = format!("{key_name}:");
        write!(f, "\n- {key_name:<NAME_WIDTH$} {}", yaml_text(&job.key))?;
        for (name, time) in [
            ("snapshot_time:", since_1970(job.last)),
            ("start_time:", since_1970(job.first)),
            ("elapsed_time:", elapsed),
        ] {
            let (secs, nsecs) = (time.as_secs(), time.subsec_nanos());
            write!(f, "\n  {name:<NAME_WIDTH$} {secs}.{nsecs:09} secs.nsecs")?;
        }
        for row in &job.rows {
            write_row(row, f)?;
        }
    }
    Ok(())
}

fn write_row(row: &Row, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Row { name, unit, sums, .. } = row;
    let Sums {
        count,
        min,
        max,
        sum,
        squares,
    } = *sums;
    let min = if count == 0 { 0 } else { min };
    write!(
        f,
        "\n  {:<NAME_WIDTH$} {{ samples: {count:>11}, unit: {unit:>5}, min: {min:>8}, max: {max:>8}, \
         sum: {sum:>16}, sumsq: {squares:>18} }}",
        format!("{name}:")
    )
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A job's name as a YAML scalar. Clients choose names, so other characters than those of usual
/// names are quoted and escaped.
fn yaml_text(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._@%/+-".contains(c);
    let starts_plain = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_plain && name.chars().all(is_plain) {
        return name.to_owned();
    }
    let mut quoted = String::from('"');
    for c in name.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                // Writing to a string does not fail.
                let _ = write!(quoted, "\\x{:02x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::yaml_text;
    use crate::{KeyedStats, Value};
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn jobs_have_the_format_of_lustre() {
        let jobs = KeyedStats::new(
            &[("read_bytes", "bytes"), ("getattr", "usecs")],
            1,
            String::new(),
            Arc::default(),
        );
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        assert_eq!(Value::Jobs(jobs.all(at(4000))).to_string(), "job_stats:");
        jobs.add(0, "dd.0", &[(0, 4096)], at(1500));
        jobs.add(0, "dd.0", &[(0, 8192)], at(3750));
        let expected = "\
job_stats:
- job_id:          dd.0
  snapshot_time:   3.750000000 secs.nsecs
  start_time:      1.500000000 secs.nsecs
  elapsed_time:    2.250000000 secs.nsecs
  read_bytes:      { samples:           2, unit: bytes, min:     4096, max:     8192, sum:            12288, sumsq:           83886080 }
  getattr:         { samples:           0, unit: usecs, min:        0, max:        0, sum:                0, sumsq:                  0 }";
        assert_eq!(Value::Jobs(jobs.all(at(4000))).to_string(), expected);
        let directories = Value::Directories(jobs.all(at(4000))).to_string();
        assert_eq!(
            directories,
            expected
                .replace("job_stats:", "dir_stats:")
                .replace("job_id:   ", "directory:")
        );
    }

    #[test]
    fn unusual_names_of_jobs_are_quoted() {
        assert_eq!(yaml_text("cp.1000"), "cp.1000");
        assert_eq!(yaml_text(""), r#""""#);
        assert_eq!(yaml_text("- a: \"b\""), r#""- a: \"b\"""#);
        assert_eq!(yaml_text("a\nb"), r#""a\x0ab""#);
    }
}
