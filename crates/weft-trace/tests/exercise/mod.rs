//! Any bytes against every parser: shared by the seeded test and the fuzz target.

use std::io::Cursor;

use weft_trace::{Format, Op, ReadOptions, Reader, Survey, read};

/// Reads `input` in every format, named and recognised, sound lines only and with the damaged ones
/// skipped, and holds what comes out against what a reader promises.
pub fn exercise(input: &[u8]) {
    for format in Format::all().map(|(format, ..)| Some(format)).chain([None]) {
        for skip_bad in [false, true] {
            let options = ReadOptions { format, skip_bad };
            // An input that nothing recognises, or that is no compressed file, is an error.
            if let Ok(reader) = read("any", Cursor::new(input.to_vec()), &options) {
                drain(reader, skip_bad, format.is_none());
            }
        }
    }
}

fn drain(mut reader: Reader, skip_bad: bool, recognised: bool) {
    // One survey an input is enough.
    let mut survey = (skip_bad && recognised).then(Survey::default);
    let (mut last_ns, mut given) = (None, 0u64);
    let mut failed = false;
    for result in reader.by_ref() {
        assert!(!failed, "a trace goes on behind an error");
        let Ok(record) = result else {
            failed = true;
            continue;
        };
        assert!(last_ns.is_some() || record.at_ns == 0, "time does not begin at 0");
        assert!(last_ns.is_none_or(|last| last <= record.at_ns), "time goes backwards");
        assert!(record.offset.checked_add(record.len).is_some(), "a request ends beyond 2^64");
        assert_eq!(record.len == 0, record.op == Op::Flush);
        last_ns = Some(record.at_ns);
        given += 1;
        if let Some(survey) = &mut survey {
            survey.add(&record);
        }
    }
    assert!(reader.next().is_none(), "a trace goes on behind its end");
    let stats = reader.stats();
    assert_eq!(stats.requests, given);
    assert!(skip_bad || stats.bad == 0);
    assert!(stats.bad_first.len() <= 10 && stats.bad_first.iter().all(|bad| bad.len() < 600));
    let Some(survey) = survey else { return };
    let info = survey.finish();
    assert_eq!(info.requests, given);
    assert!(info.read_ppm <= 1_000_000 && info.reuse_ppm <= 1_000_000);
}
