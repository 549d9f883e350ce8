"""refocal inside other packages' training loops; each module needs its package and names the extra that installs it.

| you train with | import |
|---|---|
| Hugging Face `Trainer` | `refocal.integrations.transformers` |
| Lightning | `refocal.integrations.lightning` |
"""
